"""Reads how much memory this process has, and how much there is."""

from __future__ import annotations

import os
from pathlib import Path


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
