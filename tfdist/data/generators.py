"""Python's and NumPy's random numbers, which a library may draw where users do not expect it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """Puts the generators back to where they were.

    TFDS draws from Python's when it prepares a data set, and Keras draws the seeds of weights from
    it: only the process that prepares, and only in its first run, would have other weights.
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
