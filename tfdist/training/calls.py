"""Says how many steps a call of TensorFlow makes, and whether its logs are read.

A call, its callbacks and its heartbeat cost the host a fraction of a millisecond, and so does
reading the metrics: together as much as a small model's step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import keras

# A call that grows takes about this long: progress, SIGTERM and checkpoints wait for its end.
_SECONDS = 0.05
_MOST = 64
# The first call traces and compiles, and the next ones still fill the input's buffers.
_NOT_TIMED = 2


class Growth:
    """Lets calls make as many steps as take a short time, the same number on every worker.

    Args:
        exchange: Gives every worker's value of a number; all workers call it after the same call.
    """

    def __init__(self, exchange: Callable[[int], list[int]]) -> None:
        self._exchange = exchange
        self._most = 1
        self._calls = self._steps = 0
        self._seconds = 0.0
        self._due = _NOT_TIMED + 2

    def after(self, steps: int, seconds: float) -> int:
        """Returns the most steps of the next call, after one of some steps that took some time."""
        self._calls += 1
        if self._calls > _NOT_TIMED:
            self._steps += steps
            self._seconds += seconds
        if self._calls == self._due:
            slowest = max(self._exchange(round(1e9 * self._seconds / self._steps)))
            self._most = max(1, min(round(1e9 * _SECONDS / max(slowest, 1)), _MOST))
            self._due *= 4
            self._steps, self._seconds = 0, 0.0
        return self._most


@dataclass
class Calls:
    """The calls of one `fit`.

    Attributes:
        most: The largest number of steps that the next call may make.
        are_read: Whether a callback of this worker reads the logs of a call.
        growth: Chooses `most` anew as calls are made; None to leave it.
    """

    most: int
    are_read: bool
    growth: Growth | None = None

    def most_at(self, step: int) -> int:
        """Returns the largest number of steps that a call may make, after some steps of an epoch.

        Calls that grow begin an epoch with one step: as in Keras, a callback that stops training as
        the epoch begins stops it after the first batch.
        """
        return 1 if self.growth is not None and not step else self.most

    def made(self, steps: int, seconds: float) -> None:
        """Notes a call that is done."""
        if self.growth is not None:
            self.most = self.growth.after(steps, seconds)


def read_batches(callbacks: Sequence[keras.callbacks.Callback]) -> bool:
    """Returns whether a callback may look at the batches of training, one by one.

    Args:
        callbacks: Callbacks; that of Keras for progress looks at batches only where it draws a bar.
    """
    return any(
        _has_hooks(callback)
        for callback in callbacks
        if not (isinstance(callback, keras.callbacks.ProgbarLogger) and callback.verbose != 1)
    )


def ask_for_batches(callbacks: Sequence[keras.callbacks.Callback]) -> bool:
    """Returns whether a callback needs each batch: all that read them, but for Keras' bar."""
    return any(
        _has_hooks(callback)
        for callback in callbacks
        if not isinstance(callback, keras.callbacks.ProgbarLogger)
    )


def _has_hooks(callback: keras.callbacks.Callback) -> bool:
    if getattr(callback, "reads_no_batches", False):
        return False
    if type(callback) is keras.callbacks.ModelCheckpoint and callback.save_freq == "epoch":
        return False
    names = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    return any(not getattr(getattr(callback, name), "_is_default", False) for name in names)
