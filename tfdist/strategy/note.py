"""A memory file of a task's process to which the chief writes, under a number that it knows.

It writes through the task's own TensorFlow server, so no other user can reach the file, and no disk
and no port is needed. A note is one line: `beat`, `lost` or `done`, and what belongs to it.
"""

from __future__ import annotations

import os
import sys
import tempfile

from tfdist.errors import ConfigError

BEAT, LOST, DONE = "beat", "lost", "done"
# The descriptor: larger than those that a process has before TensorFlow starts, and smaller than
# the limits of how many it may have.
_NUMBER = 217
_MEMORY = getattr(os, "memfd_create", None)
_LONGEST = 4096

# The file's name inside of its own process.
PATH = f"{'/proc/self/fd' if sys.platform == 'linux' else '/dev/fd'}/{_NUMBER}"


class Note:
    """The file.

    Raises:
        ConfigError: A descriptor of that number is open in this process.
    """

    def __init__(self) -> None:
        try:
            os.fstat(_NUMBER)
        except OSError:
            pass  # It is free.
        else:
            raise ConfigError(
                f"serve: the file descriptor {_NUMBER} is open in this process, and needed for the "
                "chief to say that it is done; close it"
            )
        with (
            tempfile.TemporaryFile("w+b") if _MEMORY is None else open(_MEMORY("tfdist"), "w+b")
        ) as file:
            os.dup2(file.fileno(), _NUMBER, inheritable=False)

    def read(self) -> tuple[str, str]:
        """Returns the kind and the rest of the latest note; the empty kind where there is none."""
        text = os.pread(_NUMBER, _LONGEST, 0).decode(errors="replace")
        if not text.endswith("\n"):
            return "", ""  # It is being written.
        kind, _, rest = text.rstrip("\n").partition(" ")
        return kind, rest

    def close(self) -> None:
        """Frees the number."""
        os.close(_NUMBER)
