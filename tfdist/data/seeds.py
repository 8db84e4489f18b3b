"""Derives seeds and orders from (seed, epoch) and nothing else."""

from __future__ import annotations

import numpy as np

# The purposes of random numbers; different purposes must not share a stream.
ORDER, FILES, BUFFER, AUGMENT, SYNTHETIC = range(5)


def derive(seed: int, epoch: int, purpose: int) -> tuple[int, int]:
    """Returns two int32 seeds, independent for every (seed, epoch, purpose)."""
    state = np.random.SeedSequence([seed, epoch, purpose]).generate_state(2) >> 1
    return int(state[0]), int(state[1])


def permutation(num_examples: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the order of one epoch: int64, shape `(num_examples,)`."""
    # RandomState, not Generator: NumPy promises that its stream never changes,
    # so a run can be resumed under another NumPy.
    return np.random.RandomState(derive(seed, epoch, ORDER)).permutation(num_examples)
