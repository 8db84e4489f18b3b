"""Keeps the side effects of TFDS's work to itself: log lines, progress bars, random numbers."""

from __future__ import annotations

import contextlib
import io
import logging
import random
from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds


def _is_wanted(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR or "tensorflow_datasets" not in record.pathname


@contextlib.contextmanager
def warnings_hidden() -> Iterator[None]:
    """Drops TFDS's own log messages below errors.

    They report a dataset that is not prepared yet, which tfdist then prepares, and TFDS's
    calls of its own deprecated methods: nothing that the user can act on.
    """
    logger = logging.getLogger("absl")
    logger.addFilter(_is_wanted)
    try:
        yield
    finally:
        logger.removeFilter(_is_wanted)


@contextlib.contextmanager
def progress_hidden() -> Iterator[None]:
    """Drops TFDS's progress bars and printed lines."""
    with contextlib.redirect_stdout(io.StringIO()):
        tfds.disable_progress_bar()
        try:
            yield
        finally:
            tfds.enable_progress_bar()


@contextlib.contextmanager
def random_state_restored() -> Iterator[None]:
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
