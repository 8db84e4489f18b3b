"""Stops a launcher with its standard input, which an ssh from another machine holds, for example.

Whoever holds it first sends the variables to set, as a JSON object in one line, and then a line
every few seconds. When standard input ends or falls silent, the launcher gets SIGTERM and ends its
tasks.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
from typing import NoReturn

from tfdist.validation import reject

# Seconds between two lines, and without one after which the connection counts as lost.
LINE_SECONDS = 5.0
SILENCE = 60.0
_MOST_BYTES = 1 << 20


def stop_with_stdin() -> None:
    """Sets the variables, and has this process end with standard input from then on.

    Raises:
        ConfigError: Standard input holds no variables.
    """
    fd = sys.stdin.fileno() if sys.stdin is not None else _refuse()
    try:
        variables = json.loads(_line(fd))
    except ValueError:
        _refuse()
    if not isinstance(variables, dict):
        _refuse()
    os.environ.update({str(name): str(value) for name, value in variables.items()})
    threading.Thread(target=_watch, args=(fd,), name="stop-with-stdin", daemon=True).start()


def _line(fd: int) -> bytes:
    """Returns the first line, and reads no more than it."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _MOST_BYTES:
        if not select.select([fd], [], [], SILENCE)[0] or not (byte := os.read(fd, 1)):
            break
        line += byte
    return line


def _watch(fd: int) -> None:
    while select.select([fd], [], [], SILENCE)[0] and os.read(fd, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _refuse() -> NoReturn:
    reject("--managed", "standard input holds no variables; only --hosts uses this flag")
