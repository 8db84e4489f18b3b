"""Handles SIGTERM: saves and stops where training saves checkpoints, else ends the process.

The kernel delivers no signal to process 1 that it has no handler for, so SIGTERM, which ends any
other process, has no effect in a container. `end_process_one` sets a handler there. It has the
signal handled in the thread of `wakeup`, as TensorFlow may block the main thread forever.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import types
from typing import Any

from tfdist.errors import EXIT_PREEMPTED
from tfdist.runtime import wakeup
from tfdist.runtime.process_one import is_one

# Seconds to flush standard output.
_FLUSH = 0.5

_is_saving = False  # Whether a block makes SIGTERM mean to save.
_ends_process_one = False
_patience = 0.0
_came = threading.Event()
_released = threading.Event()


class Sigterm:
    """Records a first SIGTERM within a `with` block; a second one ends the process.

    The code that handles it leaves the block with an exception; otherwise the signal is sent again
    after the block. Outside the main thread, where Python allows no handlers, it does nothing.
    """

    def __init__(self) -> None:
        self.came = False
        self._before: Any = None
        self._installed = False

    def __enter__(self) -> Sigterm:
        global _is_saving
        try:
            self._before = signal.signal(signal.SIGTERM, self._handle)
            self._installed = True
        except ValueError:
            self._installed = False
        if self._installed:
            wakeup.terminations = 0
            _is_saving = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        global _is_saving
        if not self._installed:
            return
        # The earlier handler, or the default if that was not a Python handler.
        signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
        _is_saving = False
        if self.came and kind is None:  # Without an exception, it came too late to be handled.
            os.kill(os.getpid(), signal.SIGTERM)

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        del frame
        if self.came:
            _end(number)
        self.came = True
        # Not `print`, which the signal may have interrupted.
        os.write(2, b"tfdist: SIGTERM: stopping after the next step; repeat it to end at once\n")


def end_process_one() -> None:
    """Makes SIGTERM end this process, with code 143, where it is process 1 or does its work.

    Does nothing in any other process, outside the main thread, or where the program has its own
    handler.
    """
    global _ends_process_one
    if _ends_process_one or not is_one() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    terminal = os.dup(2)  # File descriptor 2 is another file while TensorFlow is imported.
    if not wakeup.on_signal(functools.partial(_act_on, terminal)):
        os.close(terminal)
        return
    signal.signal(signal.SIGTERM, _leave_it_to_the_thread)
    os.register_at_fork(after_in_child=_forget)
    _ends_process_one = True


def linger(seconds: float) -> None:
    """Makes process 1 continue for a while after SIGTERM, as others may need it to save.

    Args:
        seconds: The time to continue, unless `release_after_it` is called before.
    """
    global _patience
    _patience = seconds


def release_after_it() -> None:
    """Ends process 1 now, if SIGTERM came and it lingers."""
    if _came.is_set():
        _released.set()


def end_on_it() -> None:
    """Restores Python's handling of SIGTERM, which TensorFlow has disabled."""
    with contextlib.suppress(ValueError, TypeError):  # Another thread; a handler not of Python's.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def _act_on(terminal: int, number: int) -> None:
    """Ends process 1 on SIGTERM, unless it is to save; runs in the thread of `wakeup`."""
    if number != signal.SIGTERM:
        return
    if not _is_saving:
        _came.set()
        _released.wait(_patience)
        _exit(terminal, b"tfdist: SIGTERM: ended; nothing was saved by that\n")
    elif wakeup.terminations > 1:
        _exit(terminal, b"tfdist: SIGTERM came again: ended without saving\n")


def _exit(terminal: int, line: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(terminal, line)
    # The main thread may hold the lock of standard output.
    flush = threading.Thread(target=sys.stdout.flush, daemon=True)
    flush.start()
    flush.join(_FLUSH)
    os._exit(EXIT_PREEMPTED)


def _end(number: int) -> None:
    if is_one():
        os._exit(EXIT_PREEMPTED)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _leave_it_to_the_thread(number: int, frame: types.FrameType | None) -> None:
    """Does nothing, but is a handler, without which process 1 would not receive the signal."""


def _forget() -> None:
    """Restores the default in a forked child, whose signals must not reach its parent."""
    global _ends_process_one
    _ends_process_one = False
    if signal.getsignal(signal.SIGTERM) is _leave_it_to_the_thread:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
