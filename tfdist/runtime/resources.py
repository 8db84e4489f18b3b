"""Finds the memory and the folder for temporary files that this process can use."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# In memory; containers have it whatever their file systems allow.
_IN_MEMORY = "/dev/shm"


def resident_bytes() -> int:
    """Returns the bytes of memory that this process has."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int:
    """Returns the bytes that new processes can have before others are driven out of memory."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def find_temporary_folder() -> None:
    """Sets TMPDIR to /dev/shm where nothing else can be written, as in hardened pods, and that can.

    Without such a folder TensorFlow cannot be imported: a module of its tests asks for one.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        if os.access(_IN_MEMORY, os.W_OK | os.X_OK):
            os.environ["TMPDIR"] = _IN_MEMORY
