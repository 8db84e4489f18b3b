"""SIGTERM as a wish: training is to stop at the next step that all workers agree on."""

from __future__ import annotations

import os
import signal
import types
from typing import Any

import tensorflow as tf


class StopFlag:
    """Tells all workers that one was asked to stop, in a collective that runs anyway.

    Each step adds up the workers' wishes together with their metrics, so all of them see,
    after the same step, whether anybody wishes to stop.
    """

    def __init__(self) -> None:
        self._own = tf.Variable(0.0, trainable=False)
        self._total = tf.Variable(0.0, trainable=False)

    def wish(self) -> None:
        """Has this worker wish to stop, from the next step on."""
        self._own.assign(1.0)

    def own(self) -> tf.Tensor:
        """This worker's wish, to be added up."""
        return self._own.read_value()

    def record(self, total: tf.Tensor) -> None:
        """Takes down how many wish to stop."""
        self._total.assign(total)

    @property
    def agreed(self) -> bool:
        """Whether some worker wished to stop in the latest step."""
        return bool(self._total.numpy() > 0)

    def clear(self) -> None:
        """Forgets all wishes."""
        self._own.assign(0.0)
        self._total.assign(0.0)


class Sigterm:
    """Within a `with` block, takes down a first SIGTERM; a second one ends the process.

    Outside the main thread, where Python allows no handlers, it does nothing.
    """

    def __init__(self) -> None:
        self.came = False
        self._before: Any = None
        self._installed = False

    def __enter__(self) -> Sigterm:
        try:
            self._before = signal.signal(signal.SIGTERM, self._handle)
            self._installed = True
        except ValueError:
            self._installed = False
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            # What was there before, or the default, where that was no handler of Python's.
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        del frame
        if self.came:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.came = True
        # Not print: the signal may have come in the midst of one.
        os.write(2, b"tfdist: SIGTERM: stopping after the next step; again to end at once\n")
