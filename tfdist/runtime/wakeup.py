"""Owns `signal.set_wakeup_fd`: learns of signals at once, also while the main thread is blocked.

Python runs signal handlers in the main thread only, between two bytecode instructions. A call of
TensorFlow that waits for a peer executes none: Ctrl-C would have no effect until the peer answers.
But the interpreter writes each signal's number to the wakeup descriptor at once, and a thread that
reads it can check whether the main thread has moved since.

Only `launcher/guard.py` sets the descriptor itself: it runs alone in a process and imports nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
import types
from collections.abc import Callable

# Seconds that the main thread has to handle a signal itself, and between two looks at it meanwhile.
_GRACE = 0.2
_TICK = 0.05

# How often SIGTERM has arrived, as far as the thread has read; `sigterm` resets it.
terminations = 0

_on_signal: list[Callable[[int], None]] = []
_when_blocked: list[Callable[[], None]] = []
_is_running = False


class Wakeup:
    """The descriptor to which Python writes the number of each signal that has a handler.

    Attributes:
        before: The descriptor that another part of the program had set, or -1.

    Raises:
        ValueError: This is not the main thread.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        try:
            self.before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        except ValueError:
            self._close_pipe()
            raise

    def fileno(self) -> int:
        """Returns a descriptor that is readable when a signal has arrived."""
        return self._read

    def read(self) -> bytes:
        """Returns the numbers of the signals that have arrived since the last call."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self._read, 4096)
        return b""

    def close(self) -> None:
        """Restores the descriptor that was set before."""
        signal.set_wakeup_fd(self.before)
        self._close_pipe()

    def _close_pipe(self) -> None:
        os.close(self._read)
        os.close(self._write)


def on_signal(act: Callable[[int], None]) -> bool:
    """Makes a thread call a function with the number of each signal that has a handler.

    Returns:
        Whether that is possible: this is the main thread.
    """
    if not _run_thread():
        return False
    _on_signal.append(act)
    return True


def when_blocked(act: Callable[[], None]) -> bool:
    """Makes a thread call a function as long as the main thread cannot run a terminating handler.

    The first Ctrl-C counts, if its handler is Python's own, which raises KeyboardInterrupt. The
    second SIGTERM counts, if its handler is a Python function: the first one is a request to save
    and stop after the next step (see `sigterm`).

    Returns:
        Whether that is possible: this is the main thread.
    """
    if not _run_thread():
        return False
    _when_blocked.append(act)
    return True


def _run_thread() -> bool:
    """Starts the thread, unless it runs; returns whether this is the main thread, which may."""
    global _is_running
    if threading.current_thread() is not threading.main_thread():
        return False
    if not _is_running:
        _is_running = True
        os.register_at_fork(after_in_child=_forget)
        threading.Thread(target=_run, args=(Wakeup(),), name="tfdist signals", daemon=True).start()
    return True


def _run(wakeup: Wakeup) -> None:
    global terminations
    main = _MainThread()
    poll = select.poll()
    poll.register(wakeup.fileno(), select.POLLIN)
    while True:
        poll.poll(_TICK * 1000 if main.place else None)
        for number in wakeup.read():
            if wakeup.before >= 0:  # Another part of the program still gets its numbers.
                with contextlib.suppress(OSError):
                    os.write(wakeup.before, bytes([number]))
            terminations += number == signal.SIGTERM
            main.take(number)
            for act in _on_signal:
                act(number)
        if main.is_blocked():
            for react in _when_blocked:
                react()


class _MainThread:
    """Detects that the main thread cannot run the handlers of terminating signals.

    Attributes:
        place: Where it was at the first signal that it has not handled; None where there is none.
    """

    def __init__(self) -> None:
        self.place: tuple[types.FrameType | None, int] | None = None
        self._since = 0.0  # The time of that signal.
        self._terminates = False

    def take(self, number: int) -> None:
        """Takes note of a signal that has arrived."""
        handler = signal.getsignal(number) if number in (signal.SIGINT, signal.SIGTERM) else None
        # With the user's own handler, training may have to continue after Ctrl-C.
        if not callable(handler) or (
            number == signal.SIGINT and handler is not signal.default_int_handler
        ):
            return
        if self.place is None:
            self.place, self._since, self._terminates = _place(), time.monotonic(), False
        if number == signal.SIGINT or terminations > 1:
            self._terminates = True

    def is_blocked(self) -> bool:
        """Returns whether a terminating signal has waited for it too long."""
        if self.place is not None and _place() != self.place:
            self.place = None
        waited = time.monotonic() - self._since
        return self.place is not None and self._terminates and waited >= _GRACE


def _place() -> tuple[types.FrameType | None, int]:
    """Returns where the main thread is: its frame, and the instruction in it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame, -1 if frame is None else frame.f_lasti


def _forget() -> None:
    """Leaves the thread and the descriptor to the parent, in a forked child."""
    global _is_running
    if _is_running:
        _is_running = False
        _on_signal.clear()
        _when_blocked.clear()
        signal.set_wakeup_fd(-1)
