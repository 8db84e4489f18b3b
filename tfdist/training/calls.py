"""Chooses how many steps a call of TensorFlow makes, and whether its logs are read.

A call costs the host a fraction of a millisecond, and reading the metrics costs more: for a small
model as much as the step. Where no callback is called after batches, neither is needed each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import keras

# A call of several steps is to take so long: a stop waits for its end.
_SECONDS = 0.2
_MOST_STEPS = 100
# The first call traces, and the next fills caches; so many are timed together after them.
_FIRST_CALLS = 2
_TIMED_CALLS = 3
# In longer calls steps take less time, so the number grows in rounds, each of which may be wrong.
_ROUNDS = 3
_MOST_GROWTH = 10


def read_batches(callbacks: Sequence[keras.callbacks.Callback]) -> bool:
    """Returns whether a callback may look at the batches of training, one by one.

    Args:
        callbacks: Callbacks; that of Keras for progress looks at batches only where it draws a bar.
    """
    names = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    return any(
        not getattr(getattr(callback, name), "_is_default", False)
        for callback in callbacks
        for name in names
        if not getattr(callback, "reads_no_batches", False)
        and not (isinstance(callback, keras.callbacks.ProgbarLogger) and callback.verbose != 1)
    )


class Calls:
    """The calls of one `fit`.

    All workers must create it, and time its calls, at the same points.

    Args:
        most: The largest number of steps that a call may make.
        callbacks: This worker's callbacks.
        exchange: Gives every worker's value of a number.
        may_grow: Whether to choose a larger number than `most`, by the time of a step, where no
            callback of any worker reads batches.
        under_way: How many calls may return before their steps are made. The time of a call is
            that of its steps only where as many are under way at its begin and at its end, and
            over several times that number.

    Attributes:
        most: The largest number of steps that the next call may make.
        are_read: Whether a callback of this worker reads the logs of a call.
    """

    def __init__(
        self,
        most: int,
        callbacks: Sequence[keras.callbacks.Callback],
        exchange: Callable[[int], list[int]],
        *,
        may_grow: bool,
        under_way: int = 0,
    ) -> None:
        self.most = most
        self.are_read = read_batches(callbacks)
        self._exchange = exchange
        self._before = _FIRST_CALLS + 2 * under_way
        self._timed = _TIMED_CALLS * (1 + under_way)
        self._rounds = 0
        self._begin_round()
        self._grows = may_grow and not any(exchange(int(self.are_read)))

    @contextmanager
    def timed(self, steps: int) -> Iterator[None]:
        """A context for a call of so many steps."""
        began = time.perf_counter()
        yield
        self._made += 1
        if not self._grows or not 0 < self._made <= self._timed:
            return
        self._seconds += time.perf_counter() - began
        self._steps += steps
        if self._made == self._timed:
            fitting = int(_SECONDS / (self._seconds / self._steps))
            fitting = min(fitting, _MOST_STEPS, _MOST_GROWTH * self.most)
            self.most = min(self._exchange(max(self.most, fitting)))
            self._rounds += 1
            self._grows = self._rounds < _ROUNDS
            self._begin_round()

    def _begin_round(self) -> None:
        self._made = -self._before
        self._seconds, self._steps = 0.0, 0
