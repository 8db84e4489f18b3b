"""Inspects a running process: its state, and the Python stacks that it prints on request.

A task that writes a heartbeat prints its stacks on SIGUSR1 (see `tfdist.runtime.heartbeat`), also
while TensorFlow holds the interpreter lock; a stopped process prints nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterable

_FRAME = re.compile(r'  File "(?P<path>.*)", line (?P<line>\d+) in (?P<name>.*)')
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+")


def is_stopped(pid: int) -> bool:
    """Returns whether a process is stopped, as by SIGSTOP; False where that is not known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold anything, also parentheses.
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except (OSError, IndexError):
        return False


def ask(pid: int, heartbeat: str) -> bool:
    """Asks the process that writes this heartbeat for its stacks.

    Returns:
        Whether it will print them. A process that does not handle the signal would be ended
        by it, so none is sent to it.
    """
    with contextlib.suppress(OSError, ValueError):
        with open(f"/proc/{pid}/environ", "rb") as file:
            if f"TFDIST_HEARTBEAT={heartbeat}".encode() not in file.read().split(b"\0"):
                return False  # The number belongs to another process by now.
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            caught = next((line for line in status if line.startswith("SigCgt:")), "SigCgt: 0")
        if int(caught.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1:
            os.kill(pid, signal.SIGUSR1)
            return True
    return False


def main_thread(lines: Iterable[str]) -> tuple[str, int, str] | None:
    """Finds the main thread's position in the output of `faulthandler`.

    Returns:
        Path, line and function of its innermost frame; None where there is no stack.
    """
    innermost: tuple[str, int, str] | None = None
    found: tuple[str, int, str] | None = None
    for line in lines:
        if _THREAD.match(line):
            innermost = None
        frame = _FRAME.match(line)
        if frame is not None:
            if innermost is None:
                innermost = frame["path"], int(frame["line"]), frame["name"]
            if frame["name"] == "<module>":  # Only the main thread began in a module.
                found = innermost
    return found
