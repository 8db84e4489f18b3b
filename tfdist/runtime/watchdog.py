"""Kills a process that is stuck inside TensorFlow.

A strategy whose peer vanishes while it is being built waits forever, holds the
interpreter lock and ignores SIGTERM: nothing inside the process can end it. So a
second, small process watches from outside.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from tfdist.runtime.process_one import blocks_sigterm

# Its standard input closes when the watched process is done, or dead; then it ends too.
_WATCH = """
import os, select, signal, sys
pid, seconds, text = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
if not select.select([sys.stdin], [], [], seconds)[0] and os.getppid() == pid:
    sys.stderr.write(text + "\\n")
    sys.stderr.flush()
    os.kill(pid, signal.SIGKILL)
"""


@contextlib.contextmanager
def watchdog(seconds: float, what: str) -> Iterator[None]:
    """Kills this process if the block takes longer than a number of seconds.

    The exit status is then that of SIGKILL (137), for which every launcher starts the task
    again.

    Args:
        seconds: The time limit of the block.
        what: The awaited event, for the one line that is printed.
    """
    text = f"tfdist: {what} took longer than {seconds:.0f} s; ended with SIGKILL"
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCH, str(os.getpid()), str(seconds), text],
        stdin=subprocess.PIPE,
    )
    try:
        with blocks_sigterm():
            yield
    finally:
        assert watcher.stdin is not None
        watcher.stdin.close()
        watcher.wait()
