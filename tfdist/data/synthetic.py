"""Generates random images for benchmarks, which cost almost nothing to read."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdist.data import seeds
from tfdist.data.pipeline import Pipeline
from tfdist.data.sharding import Shard

# Distinct images a pipeline makes; more would cost memory and measure nothing else.
_DISTINCT = 64


class SyntheticPipeline(Pipeline):
    """Repeats one random batch.

    The batch is made once and not copied, so reading does not disturb the measurement.
    Image `i` of the global batch is the same for every number of pipelines; labels and
    images are random, so a model can learn nothing but the batch itself.

    Attributes:
        num_classes: labels lie in 0 to `num_classes - 1`.
    """

    def __init__(
        self,
        *,
        num_examples: int,
        image_shape: tuple[int, int, int],
        num_classes: int,
        global_batch: int,
        seed: int,
        drop_remainder: bool,
        one_hot: int | None = None,
    ) -> None:
        super().__init__(
            num_examples=num_examples,
            image_shape=image_shape,
            global_batch=global_batch,
            seed=seed,
            drop_remainder=drop_remainder,
            one_hot=one_hot,
        )
        self.num_classes = num_classes

    def _epoch(self, shard: Shard, epoch: int, first: int) -> tf.data.Dataset:
        del epoch  # every epoch is alike
        positions = shard.positions() % self.global_batch
        images, labels = self._examples(positions[: shard.batch])
        dataset = tf.data.Dataset.from_tensors((images, labels)).repeat(shard.full_batches)
        if shard.last_batch:
            last = self._examples(positions[shard.full_batches * shard.batch :])
            dataset = dataset.concatenate(tf.data.Dataset.from_tensors(last))
        return dataset.skip(first)

    def _examples(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.RandomState(seeds.derive(self.seed, 0, seeds.SYNTHETIC))
        distinct = min(_DISTINCT, self.global_batch)
        images = random.standard_normal((distinct, *self.image_shape)).astype(np.float32)
        labels = random.randint(0, self.num_classes, distinct).astype(np.int32)
        return images[positions % distinct], labels[positions % distinct]
