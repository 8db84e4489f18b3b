"""Detects signals that arrive while a call outside Python blocks the main thread.

Python runs signal handlers in the main thread only, between two bytecode instructions. A call of
TensorFlow that waits for a peer executes none: Ctrl-C would have no effect until the peer answers.
With `signal.set_wakeup_fd` the interpreter writes each signal's number to a socket at once; the
thread that reads it can check whether the main thread has moved since.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
import time
import types

# Seconds that the main thread has to handle a signal itself.
_GRACE = 0.2


class Interrupts:
    """Detects signals whose handlers the main thread cannot run.

    The first Ctrl-C counts, if its handler is Python's own, which raises KeyboardInterrupt. The
    second SIGTERM counts, if its handler is a Python function: the first one is a request to save
    and stop after the next step (see `sigterm`).
    """

    def __init__(self) -> None:
        self._numbers, self._written = socket.socketpair()
        self._numbers.setblocking(False)
        self._written.setblocking(False)
        self._terminations = 0
        self._wanted = False
        # The position of the main thread at the first signal that it has not handled; its time.
        self._held: tuple[types.FrameType | None, int] | None = None
        self._since = 0.0

    @classmethod
    def install(cls) -> Interrupts | None:
        """Starts the detection; returns None where that is not possible.

        It takes the main thread, and a wakeup descriptor that is not in use.
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
        """Returns a descriptor that is readable when a signal has arrived."""
        return self._numbers.fileno()

    def expecting(self) -> bool:
        """Returns whether a signal has arrived that the main thread has not handled yet."""
        return self._held is not None

    def pending(self) -> bool:
        """Returns whether a terminating signal has waited for the blocked main thread too long."""
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
    """Returns the position of the main thread: its frame, and the instruction in it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame, -1 if frame is None else frame.f_lasti
