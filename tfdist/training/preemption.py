"""SIGTERM as a request to save and stop, which is taken down and not obeyed at once."""

from __future__ import annotations

import os
import signal
import types
from typing import Any


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
