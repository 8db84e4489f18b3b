"""Holds batches back until several make one message to a worker.

A message to a worker and its answer cost the chief milliseconds, however small the batch: more than
a small model's step. Several batches in one message share that cost.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# A worker has this much to do with a message, where batches are short; a worker that is lost
# leaves at most that much to be done again.
_SECONDS = 0.04
_MOST = 16
# Answers of a worker from which the time of a batch is computed. Answers of several workers come in
# turn, or at one instant: the time between two of them shows nothing.
_FEWEST, _WINDOW = 2, 4


class Grouping:
    """Batches that wait, and how many of them make a message.

    Args:
        most: The largest number of batches in a message.
        workers: How many workers answer.
        clock: Returns the time in seconds.

    Attributes:
        size: How many batches make a message now.
    """

    def __init__(
        self,
        most: int = _MOST,
        *,
        workers: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.size = 1
        self._most = most
        self._workers = max(1, workers)
        self._clock = clock
        self._waiting: list[Any] = []
        # When each of the latest answers came, and for how many batches it was.
        self._answers: deque[tuple[float, int]] = deque(maxlen=_WINDOW * self._workers + 1)

    def takes(self, batch: Any) -> bool:
        """Returns whether a batch can be in one message with those that wait."""
        if not self._waiting:
            return True
        form = _form(batch)
        return form is not None and form == _form(self._waiting[0])

    def add(self, batch: Any) -> bool:
        """Lets a batch wait; returns whether those that wait make a message."""
        self._waiting.append(batch)
        return len(self._waiting) >= self.size

    def take(self) -> list[Any]:
        """Returns the batches that waited."""
        taken, self._waiting = self._waiting, []
        return taken

    def answered(self, batches: int) -> None:
        """Chooses the size again, by the time that the latest batches took a worker.

        Args:
            batches: The number of batches that the answer is for.
        """
        self._answers.append((self._clock(), batches))
        if len(self._answers) <= _FEWEST * self._workers:
            return
        (first, _), *rest = self._answers
        seconds = (rest[-1][0] - first) * self._workers / sum(count for _, count in rest)
        fit = round(_SECONDS / max(seconds, 1e-9))
        self.size = max(1, min(fit, 2 * self.size, self._most))

    def pause(self) -> None:
        """Begins a time in which no batch is handed out, which shows nothing about batches."""
        self._answers.clear()


def _form(batch: Any) -> Any:
    """Returns what batches to be stacked have in common; None where they cannot be stacked."""
    if not all(leaf is None or isinstance(leaf, tf.Tensor) for leaf in tf.nest.flatten(batch)):
        return None
    return tf.nest.map_structure(lambda leaf: leaf if leaf is None else _spec(leaf), batch)


def _spec(leaf: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec(leaf.shape, leaf.dtype)


def stack(batches: list[Any]) -> Any:
    """Returns batches of one form as one, with a first dimension that counts them."""
    return tf.nest.map_structure(
        lambda *leaves: None if leaves[0] is None else tf.stack(leaves), *batches
    )


def unstack(stacked: Any, index: tf.Tensor) -> Any:
    """Returns one batch of those that `stack` made one of."""
    return tf.nest.map_structure(lambda leaf: None if leaf is None else leaf[index], stacked)
