"""Ends a process on a tfdist error: one line, the right exit code, and at once if necessary."""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Callable
from typing import Any, NoReturn

from tfdist.errors import OutOfStepError, PeerError, TfdistError
from tfdist.runtime.process_one import is_one
from tfdist.validation import printable

# Seconds that process 1 of a container waits after a peer was lost; see `end_without_shutdown`.
_LINGER = 20.0

_connected = False
_before_end: list[Callable[[TfdistError], None]] = []
_before: Callable[..., Any] = sys.__excepthook__


def install(*, connected: bool = False) -> None:
    """Makes uncaught tfdist errors end this process with one line and their exit code.

    Works under `absl.app.run` too. Other exceptions end it as before.

    Args:
        connected: Whether TensorFlow is connected to other tasks. Its shutdown then waits for
            all of them, even for a lost one, so an error about a peer skips the shutdown.
    """
    global _connected, _before
    _connected = _connected or connected
    if sys.excepthook is not _hook:
        _before = sys.excepthook
        sys.excepthook = _hook


def before_end(act: Callable[[TfdistError], None]) -> None:
    """Makes `report` call a function, in addition to earlier ones, before it ends the process."""
    _before_end.append(act)


def report(error: TfdistError) -> int:
    """Prints the line of an error; returns the exit code, or ends the process at once.

    It ends the process at once where TensorFlow is connected and a peer was lost or is out of
    step: TensorFlow's shutdown would wait for that peer.
    """
    # A name of a file may have line breaks, or colour the terminal.
    print(f"tfdist: {printable(str(error))}", file=sys.stderr, flush=True)
    # Shows functions that run at exit that the process failed, as any uncaught exception does.
    sys.last_value = error
    if _connected and isinstance(error, (PeerError, OutOfStepError)):
        for act in _before_end:
            act(error)
        end_without_shutdown(error)
    return error.exit_code


def end_without_shutdown(error: TfdistError) -> NoReturn:
    """Ends this process with the exit code of an error, and runs nothing at its exit.

    Process 1 of a container waits first where a peer was lost. The peer may have failed for good
    and take seconds to end. Once this process ended, Kubernetes would start all tasks again, and
    the peer's own exit code would never be known. SIGTERM ends the wait.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if isinstance(error, PeerError) and is_one():
        time.sleep(_LINGER)
    os._exit(error.exit_code)


def _hook(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    if isinstance(error, TfdistError):
        raise SystemExit(report(error))  # Ends the process with that code.
    _before(kind, error, trace)
