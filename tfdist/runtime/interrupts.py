"""Signals that come while something else than Python holds the main thread.

Python runs handlers of signals in the main thread only, between two of its instructions. In a call
of TensorFlow's that waits for a peer there are none: Ctrl-C would do nothing until the peer comes.
The interpreter can be asked to write each signal's number to a socket at once, and a thread that
reads it can see whether the main thread has moved since.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
import time
import types

# How long the main thread is given to act on a signal by itself, in seconds.
_GRACE = 0.2


class Interrupts:
    """Notices signals that the main thread does not get to act on.

    Ctrl-C counts at once, if Python's own handler is to act on it, which raises KeyboardInterrupt;
    SIGTERM the second time, if a handler of Python's is to act on it: the first is a request to
    save and stop after the next step (see `sigterm`).
    """

    def __init__(self) -> None:
        self._numbers, self._written = socket.socketpair()
        self._numbers.setblocking(False)
        self._written.setblocking(False)
        self._terminations = 0
        self._wanted = False
        # Where the main thread was when the first signal came that it has not acted on, and when.
        self._held: tuple[types.FrameType | None, int] | None = None
        self._since = 0.0

    @classmethod
    def install(cls) -> Interrupts | None:
        """Starts to notice; None where that is not possible.

        Only the main thread may ask for it, and somebody else may have done so.
        """
        if threading.current_thread() is not threading.main_thread():
            return None
        made = cls()
        before = signal.set_wakeup_fd(made._written.fileno(), warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            return None
        return made

    def fileno(self) -> int:
        """A descriptor that is ready to be read when a signal came."""
        return self._numbers.fileno()

    def expecting(self) -> bool:
        """Whether a signal came that the main thread has not acted on yet."""
        return self._held is not None

    def pending(self) -> bool:
        """Whether a signal that is to end what goes on has been held back for a while."""
        with contextlib.suppress(BlockingIOError):
            for number in self._numbers.recv(256):
                self._take(number)
        if self._held is None:
            return False
        if _place() != self._held:
            self._held, self._wanted = None, False
            return False
        return self._wanted and time.monotonic() - self._since >= _GRACE

    def _take(self, number: int) -> None:
        handler = signal.getsignal(number) if number in (signal.SIGINT, signal.SIGTERM) else None
        # A handler of the user's own may want training to go on after Ctrl-C.
        if not callable(handler) or (
            number == signal.SIGINT and handler is not signal.default_int_handler
        ):
            return
        self._terminations += number == signal.SIGTERM
        self._wanted = self._wanted or number == signal.SIGINT or self._terminations > 1
        if self._held is None:
            self._held, self._since = _place(), time.monotonic()


def _place() -> tuple[types.FrameType | None, int]:
    """Where the main thread is: a frame, and the instruction in it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame, -1 if frame is None else frame.f_lasti
