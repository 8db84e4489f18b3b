"""Describes the machine and the versions that figures belong to."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

from tfdist import __version__
from tfdist.launch.machine import gpu_ids, usable_cores


def describe() -> str:
    """Returns processor, cores, GPUs and versions in a line."""
    parts = [f"{len(usable_cores())} cores of {_processor()}"]
    gpus = len(gpu_ids(os.environ))
    if gpus:
        parts.append(f"{gpus} GPUs")
    parts.append(f"Python {platform.python_version()}")
    for name in ("tensorflow", "keras"):
        try:
            parts.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    parts.append(f"tfdist {__version__}")
    return ", ".join(parts)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine() or "an unknown processor"
