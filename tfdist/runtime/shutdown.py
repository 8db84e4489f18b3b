"""Runs actions when a process ends, within a deadline, even if TensorFlow waits forever.

TensorFlow's calls to other tasks have no deadline, and its threads may hold a lock while they
wait for a task. Python freezes such threads when it ends, and code that then acquires the lock,
such as `ClusterCoordinator.__del__`, waits forever.
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
from tfdist.runtime.log import LOGGER

_SECONDS = 10.0
# Seconds after which a line names the awaited events.
_NOTICE = 30.0

# The actions, and the seconds to wait for each.
_threads: dict[threading.Thread, float | None] = {}
_ends = threading.Event()
_codes: list[Any] = []  # The arguments of `sys.exit`, which exit functions do not get.


def at_exit(what: str, act: Callable[[], None], *, patience: float | None = None) -> None:
    """Makes this process call `act` when it ends, in addition to earlier ones.

    If they take longer than their patience, the process ends without waiting any longer, with the
    exit code it would have had and a line that reports it.

    Args:
        what: The awaited event, for that line.
        act: The function to call, in its own thread; an exception in it is printed.
        patience: The time to wait for it, in seconds; ten by default.
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
    _threads[thread] = patience


def ends_well() -> bool:
    """Returns whether the process, which is ending, ends without an error."""
    return _code() == EXIT_DONE


def _end() -> None:
    _ends.set()
    began = time.monotonic()
    for thread, patience in _threads.items():
        until = began + (_SECONDS if patience is None else patience)
        thread.join(min(_NOTICE, max(0.0, until - time.monotonic())))
        if thread.is_alive() and time.monotonic() < until:
            LOGGER.info("done, and waiting for %s", thread.name)
            thread.join(max(0.0, until - time.monotonic()))
    late = [thread.name for thread in _threads if thread.is_alive()]
    if late:
        LOGGER.warning("ended without waiting any longer for %s", ", ".join(late))
        sys.stdout.flush()
        sys.stderr.flush()
        if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
            # As Python itself does, so that the parent process sees the signal as the cause.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(_code())


def _code() -> int:
    """Returns the exit code of the process, which is ending."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        return error.exit_code if isinstance(error, TfdistError) else EXIT_USER_ERROR
    status = _codes[-1] if _codes else None
    if status is None or isinstance(status, int):
        return status or EXIT_DONE
    return EXIT_USER_ERROR


def _watch_exit_codes() -> None:
    leave = sys.exit

    def record(status: Any = None) -> NoReturn:
        _codes.append(status)
        leave(status)

    sys.exit = record
