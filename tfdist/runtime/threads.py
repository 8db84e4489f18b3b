"""Limits TensorFlow's threads where a scheduler gave this task a part of the node.

TensorFlow starts as many threads as the machine has cores. The order in which a sum is added up
depends on their number, so the results of a task would depend on the size of the node; and tasks
that share a node would each use all of its cores.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

_INTER_OP_THREADS = 2


def thread_variables(cpus: int) -> dict[str, str]:
    """Returns the environment variables that limit TensorFlow and OpenMP to a number of CPUs."""
    return {
        "TF_NUM_INTRAOP_THREADS": str(cpus),
        "TF_NUM_INTEROP_THREADS": str(_INTER_OP_THREADS),
        "OMP_NUM_THREADS": str(cpus),
    }


def limit_threads(environ: MutableMapping[str, str] | None = None, root: str = "/") -> None:
    """Sets the variables that are not set, where Slurm or a container limits the CPUs.

    Args:
        environ: The environment; this process' own by default.
        root: Where the file system begins.
    """
    environ = os.environ if environ is None else environ
    cpus = _slurm_cpus(environ) or container_cpus(root)
    if cpus:
        for name, value in thread_variables(cpus).items():
            environ.setdefault(name, value)


def container_cpus(root: str = "/") -> int | None:
    """Returns the quota of this process' control group in whole CPUs; None where there is none.

    Args:
        root: Where the file system begins.
    """
    quotas = [quota for quota in _quotas(Path(root)) if quota > 0]
    return max(1, int(min(quotas))) if quotas else None


def _slurm_cpus(environ: Mapping[str, str]) -> int | None:
    text = environ.get("SLURM_CPUS_PER_TASK", "") if "SLURM_PROCID" in environ else ""
    return int(text) if text.isascii() and text.isdigit() and int(text) else None


def _quotas(root: Path) -> Iterator[float]:
    """Yields the quotas of this process' control group and of its parents, in CPUs."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for group in _around(root / "sys/fs/cgroup", path):
                yield _quota(group / "cpu.max")
        elif "cpu" in controllers.split(","):
            for hierarchy in ("cpu", "cpu,cpuacct", "cpuacct,cpu"):
                for group in _around(root / "sys/fs/cgroup" / hierarchy, path):
                    yield _quota(group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")


def _around(mount: Path, path: str) -> Iterator[Path]:
    # In a container the path may be the host's, and the mount the container's own group.
    group = mount / path.strip("/")
    while group != mount and mount in group.parents:
        yield group
        group = group.parent
    yield mount


def _quota(*files: Path) -> float:
    """Reads `QUOTA PERIOD`, in one file or two; 0.0 where there is no limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = " ".join(file.read_text() for file in files).split()
        if quota != "max" and int(quota) > 0:
            return int(quota) / int(period)
    return 0.0
