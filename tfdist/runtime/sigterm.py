"""Handles SIGTERM: saves and stops where training saves checkpoints, else ends the process.

The kernel delivers no signal to process 1 that it has no handler for, so SIGTERM, which ends any
other process, has no effect in a container. `end_process_one` sets a handler there. Python handlers
run in the main thread only, between two bytecode instructions, and TensorFlow may block that thread
forever. So a separate thread reads the signal from a pipe, to which Python's C handler writes at
once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import types
from typing import Any

from tfdist.errors import EXIT_PREEMPTED
from tfdist.runtime.process_one import is_one

# Seconds to flush standard output.
_FLUSH = 0.5

_saving: Sigterm | None = None  # The block that makes SIGTERM mean to save.
_watches = False
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
        self.heard = 0
        self._before: Any = None
        self._installed = False

    def __enter__(self) -> Sigterm:
        global _saving
        try:
            self._before = signal.signal(signal.SIGTERM, self._handle)
            self._installed = True
        except ValueError:
            self._installed = False
        if self._installed:
            _saving = self
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        global _saving
        if not self._installed:
            return
        # The earlier handler, or the default if that was not a Python handler.
        signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
        _saving = None
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

    Does nothing in any other process, outside the main thread, or where the program has a handler
    of its own.
    """
    global _watches
    if _watches or not is_one() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    if threading.current_thread() is not threading.main_thread():
        return
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    terminal = os.dup(2)  # File descriptor 2 is another file while TensorFlow is imported.
    before = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, _leave_it_to_the_thread)
    os.register_at_fork(after_in_child=_forget)
    threading.Thread(
        target=_watch, args=(told, before, terminal), name="sigterm", daemon=True
    ).start()
    _watches = True


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


def _watch(told: int, before: int, terminal: int) -> None:
    while True:
        for number in os.read(told, 64):
            if before >= 0:  # Another part of the program has set it: that still gets the number.
                with contextlib.suppress(OSError):
                    os.write(before, bytes([number]))
            if number != signal.SIGTERM:
                continue
            saving = _saving
            if saving is not None:
                saving.heard += 1
            if saving is None:
                _came.set()
                _released.wait(_patience)
                _exit(terminal, b"tfdist: SIGTERM: ended; nothing was saved by that\n")
            elif saving.heard > 1:
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
    """Restores the defaults in a forked child, whose signals must not reach its parent."""
    global _watches
    _watches = False
    signal.set_wakeup_fd(-1)
    if signal.getsignal(signal.SIGTERM) is _leave_it_to_the_thread:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
