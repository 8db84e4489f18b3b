"""Describes the machine and the versions that figures were measured with."""

from __future__ import annotations

import datetime
import os
import platform
from importlib import metadata
from pathlib import Path

from tfdist.launcher.machine import usable_cores

_PACKAGES = ("tfdist", "tensorflow", "keras", "numpy")


def describe() -> dict[str, str]:
    """Returns what figures depend on: date, processor, cores, memory, system and versions."""
    described = {
        "date": datetime.date.today().isoformat(),
        "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": f"{len(usable_cores())} of {os.cpu_count()}",
        "memory": _gigabytes(_field("/proc/meminfo", "MemTotal")),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    return described | {name: _version(name) for name in _PACKAGES}


def line(described: dict[str, str]) -> str:
    """Returns the description as one line."""
    return ", ".join(f"{name} {value}" for name, value in described.items())


def _field(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    found = (text.partition(":")[2].strip() for text in lines if text.startswith(name))
    return next(found, "")


def _gigabytes(text: str) -> str:
    """Reads `24673212 kB`."""
    number = text.split(" ")[0]
    return f"{int(number) * 1024 / 1e9:.0f} GB" if number.isdigit() else "unknown"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
