"""Suppresses TFDS's messages on the terminal while tfdist works with it."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator

import tensorflow_datasets as tfds


def _is_wanted(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR or "tensorflow_datasets" not in record.pathname


@contextlib.contextmanager
def warnings() -> Iterator[None]:
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
def progress() -> Iterator[None]:
    """Drops TFDS's progress bars and printed lines."""
    with contextlib.redirect_stdout(io.StringIO()):
        tfds.disable_progress_bar()
        try:
            yield
        finally:
            tfds.enable_progress_bar()
