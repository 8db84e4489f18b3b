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
from collections import Counter
from collections.abc import Callable

# Seconds that the main thread has to handle a signal itself.
_GRACE = 0.2
# Seconds between two looks at the main thread while it has not.
_TICK = 0.05


class Wakeup:
    """The descriptor to which Python writes the number of each signal that has a handler.

    Raises:
        ValueError: This is not the main thread.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        for descriptor in (self._read, self._write):
            os.set_blocking(descriptor, False)
        try:
            self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        except ValueError:
            self._close_pipe()
            raise

    @property
    def replaces_another(self) -> bool:
        """Whether another part of the program had set a descriptor."""
        return self._before >= 0

    def fileno(self) -> int:
        """Returns a descriptor that is readable when a signal has arrived."""
        return self._read

    def read(self) -> bytes:
        """Returns the numbers of the signals that have arrived since the last call."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self._read, 4096)
        return b""

    def pass_on(self, numbers: bytes) -> None:
        """Writes numbers to the descriptor that was set before, if any."""
        if self.replaces_another:
            with contextlib.suppress(OSError):
                os.write(self._before, numbers)

    def close(self) -> None:
        """Restores the descriptor that was set before."""
        signal.set_wakeup_fd(self._before)
        self._close_pipe()

    def _close_pipe(self) -> None:
        os.close(self._read)
        os.close(self._write)


# How often each signal has arrived, as the thread has read.
_arrived: Counter[int] = Counter()
_on_signal: list[Callable[[int], None]] = []
_when_blocked: list[Callable[[], None]] = []
_is_running = False


def on_signal(act: Callable[[int], None]) -> bool:
    """Makes a thread call a function with the number of each signal that has a handler.

    Where another part of the program has set a wakeup descriptor, that still gets the numbers.

    Returns:
        Whether that is possible: this is the main thread.
    """
    if not _run_thread(share=True):
        return False
    _on_signal.append(act)
    return True


def when_blocked(act: Callable[[], None]) -> bool:
    """Makes a thread call a function while the main thread cannot run a terminating handler.

    The first Ctrl-C counts, if its handler is Python's own, which raises KeyboardInterrupt. The
    second SIGTERM counts, if its handler is a Python function: the first one is a request to save
    and stop after the next step (see `sigterm`).

    Args:
        act: The function; it is called again as long as the main thread does not move.

    Returns:
        Whether that is possible: this is the main thread, and no other part of the program has set
        a wakeup descriptor.
    """
    if not _run_thread(share=False):
        return False
    _when_blocked.append(act)
    return True


def arrivals(number: int) -> int:
    """Returns how often a signal has arrived, as far as the thread runs and has read it."""
    return _arrived[number]


def forget_arrivals(number: int) -> None:
    """Counts a signal's arrivals from 0 again."""
    _arrived[number] = 0


def _run_thread(*, share: bool) -> bool:
    """Starts the thread, unless it runs; returns whether it does.

    Args:
        share: Whether to replace a descriptor that another part of the program has set.
    """
    global _is_running
    if threading.current_thread() is not threading.main_thread():
        return False
    if _is_running:
        return True
    wakeup = Wakeup()
    if wakeup.replaces_another and not share:
        wakeup.close()
        return False
    os.register_at_fork(after_in_child=_forget)
    threading.Thread(target=_run, args=(wakeup,), name="tfdist signals", daemon=True).start()
    _is_running = True
    return True


def _run(wakeup: Wakeup) -> None:
    main = _MainThread()
    poll = select.poll()
    poll.register(wakeup.fileno(), select.POLLIN)
    while True:
        poll.poll(_TICK * 1000 if main.has_signal else None)
        numbers = wakeup.read()
        wakeup.pass_on(numbers)
        for number in numbers:
            _arrived[number] += 1
            main.take(number)
            for act in _on_signal:
                act(number)
        if main.is_blocked():
            for react in _when_blocked:
                react()


class _MainThread:
    """Detects that the main thread cannot run the handlers of terminating signals."""

    def __init__(self) -> None:
        # Its position at the first signal that it has not handled, and the time of that.
        self._position: tuple[types.FrameType | None, int] | None = None
        self._since = 0.0
        self._terminates = False

    @property
    def has_signal(self) -> bool:
        """Whether a signal has arrived that it has not handled yet, as far as is known."""
        return self._position is not None

    def take(self, number: int) -> None:
        """Takes note of a signal that has arrived."""
        handler = signal.getsignal(number) if number in (signal.SIGINT, signal.SIGTERM) else None
        # With the user's own handler, training may have to continue after Ctrl-C.
        if not callable(handler) or (
            number == signal.SIGINT and handler is not signal.default_int_handler
        ):
            return
        if number == signal.SIGINT or arrivals(signal.SIGTERM) > 1:
            self._terminates = True
        if self._position is None:
            self._position, self._since = _position(), time.monotonic()

    def is_blocked(self) -> bool:
        """Returns whether a terminating signal has waited for it too long."""
        if self._position is None:
            return False
        if _position() != self._position:
            self._position, self._terminates = None, False
            return False
        return self._terminates and time.monotonic() - self._since >= _GRACE


def _position() -> tuple[types.FrameType | None, int]:
    """Returns the position of the main thread: its frame, and the instruction in it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame, -1 if frame is None else frame.f_lasti


def _forget() -> None:
    """Leaves the thread and the descriptor to the parent, in a forked child."""
    global _is_running
    if not _is_running:
        return
    _is_running = False
    _arrived.clear()
    _on_signal.clear()
    _when_blocked.clear()
    signal.set_wakeup_fd(-1)
