"""Orders the examples of an epoch and divides them among input pipelines: arithmetic only.

Seeds and orders follow from (seed, epoch) and nothing else.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tfdist.partition import part

# The purposes of random numbers; different purposes must not share a stream.
ORDER, FILES, BUFFER, AUGMENT, SYNTHETIC = range(5)


@dataclasses.dataclass(frozen=True)
class Shard:
    """One pipeline's part of one epoch of `num_examples` in global batches.

    Each global batch is divided over the pipelines, including the last, partial
    one: pipelines stay in step, and batch `k` of all pipelines together is
    global batch `k` of a single pipeline. A last batch with fewer examples
    than pipelines leaves some pipelines without one.

    Attributes:
        num_examples: Examples in the epoch, over all pipelines.
        global_batch: Examples in a full global batch.
        num_pipelines: Input pipelines (usually one per worker).
        index: The number of this one, from 0.
        drop_remainder: Leave the last, partial global batch out.
    """

    num_examples: int
    global_batch: int
    num_pipelines: int = 1
    index: int = 0
    drop_remainder: bool = False

    @property
    def full_batches(self) -> int:
        """Number of full global batches."""
        return self.num_examples // self.global_batch

    @property
    def remainder(self) -> int:
        """Examples in the last, partial global batch, 0 where there is none."""
        return 0 if self.drop_remainder else self.num_examples % self.global_batch

    @property
    def batch(self) -> int:
        """This pipeline's examples in a full global batch."""
        start, stop = part(self.global_batch, self.num_pipelines, self.index)
        return stop - start

    @property
    def last_batch(self) -> int:
        """This pipeline's examples in the last, partial global batch."""
        start, stop = part(self.remainder, self.num_pipelines, self.index)
        return stop - start

    @property
    def num_batches(self) -> int:
        """Batches this pipeline gives in an epoch."""
        return self.full_batches + (self.last_batch > 0)

    @property
    def size(self) -> int:
        """Examples this pipeline gives in an epoch."""
        return self.full_batches * self.batch + self.last_batch

    @property
    def start(self) -> int:
        """Examples of all pipelines before this one: where a contiguous shard begins."""
        return sum(dataclasses.replace(self, index=before).size for before in range(self.index))

    def positions(self) -> np.ndarray:
        """Returns the positions in the epoch this pipeline reads: int64, shape `(size,)`."""
        start, stop = part(self.global_batch, self.num_pipelines, self.index)
        full = np.arange(self.full_batches)[:, None] * self.global_batch + np.arange(start, stop)
        start, stop = part(self.remainder, self.num_pipelines, self.index)
        last = self.full_batches * self.global_batch + np.arange(start, stop)
        return np.concatenate([full.ravel(), last]).astype(np.int64)


def derive_seeds(seed: int, epoch: int, purpose: int) -> tuple[int, int]:
    """Returns two int32 seeds, independent for every (seed, epoch, purpose)."""
    state = np.random.SeedSequence([seed, epoch, purpose]).generate_state(2) >> 1
    return int(state[0]), int(state[1])


def permutation(num_examples: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the order of one epoch: int64, shape `(num_examples,)`."""
    # RandomState, not Generator: NumPy promises that its stream never changes,
    # so a run can be resumed under another NumPy.
    return np.random.RandomState(derive_seeds(seed, epoch, ORDER)).permutation(num_examples)
