"""Ends a process that TensorFlow holds.

A strategy whose peer vanishes while it is being built waits for ever, holds the
interpreter lock and ignores SIGTERM: nothing inside the process can end it. So a
second, tiny process watches from outside.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

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
def backstop(seconds: float, what: str) -> Iterator[None]:
    """Kills this process if the block takes longer than so many seconds.

    The exit status is then that of SIGKILL (137), which every launcher takes for a loss that
    starting again may mend.

    Args:
        seconds: How long the block may take.
        what: What was waited for, for the one line that is printed.
    """
    text = f"tfdist: {what} took longer than {seconds:.0f} s; ended with SIGKILL"
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCH, str(os.getpid()), str(seconds), text],
        stdin=subprocess.PIPE,
    )
    try:
        yield
    finally:
        assert watcher.stdin is not None
        watcher.stdin.close()
        watcher.wait()
