"""What a process does when it ends, whatever TensorFlow waits for, within a deadline.

TensorFlow's calls to other tasks have no deadline, and its threads may hold a lock while they
wait for a task. Python freezes such threads when it ends, and whoever then asks for the lock
waits for ever; `ClusterCoordinator.__del__` does.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from tfdist.errors import EXIT_DONE, EXIT_USER_ERROR, TfdistError

_SECONDS = 10.0

_threads: list[threading.Thread] = []
_ends = threading.Event()
_codes: list[Any] = []  # What `sys.exit` was called with; what runs at exit is not told.


def at_exit(what: str, act: Callable[[], None]) -> None:
    """Makes this process call `act` when it ends, beside the others that were given.

    If they take more than ten seconds, the process ends without waiting any longer, with the exit
    code it would have had and a line that says so.

    Args:
        what: What was waited for, for that line.
        act: It is called in a thread of its own; what it raises is printed.
    """
    if not _threads:
        _watch_exit_codes()
        atexit.register(_end)

    def wait_and_act() -> None:
        _ends.wait()
        act()

    # From Python 3.12 on no thread can be started at exit.
    thread = threading.Thread(target=wait_and_act, name=what, daemon=True)
    thread.start()
    _threads.append(thread)


def ends_well() -> bool:
    """Whether the process, which is ending, has not failed."""
    return _code() == EXIT_DONE


def _end() -> None:
    _ends.set()
    until = time.monotonic() + _SECONDS
    for thread in _threads:
        thread.join(max(0.0, until - time.monotonic()))
    late = [thread.name for thread in _threads if thread.is_alive()]
    if late:
        print(f"tfdist: ended without waiting any longer for {', '.join(late)}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
            # As Python ends itself: who started it sees that the signal did it.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(_code())


def _code() -> int:
    """The exit code of the process, which is ending."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        return error.exit_code if isinstance(error, TfdistError) else EXIT_USER_ERROR
    status = _codes[-1] if _codes else None
    if status is None or isinstance(status, int):
        return status or EXIT_DONE
    return EXIT_USER_ERROR


def _watch_exit_codes() -> None:
    leave = sys.exit

    def take_down(status: Any = None) -> NoReturn:
        _codes.append(status)
        leave(status)

    sys.exit = take_down
