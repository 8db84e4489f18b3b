"""Preserves the state of Python's and NumPy's random number generators."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """Restores the state of the generators at the end of the block.

    TFDS draws from Python's generator when it prepares a dataset, and Keras draws the seeds of
    weights from it: the process that prepares, in its first run only, would have other weights.
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
