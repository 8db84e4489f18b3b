"""Gives tasks what they need of this machine: a program, its environment, CPU cores and GPUs."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tfdist.errors import ConfigError
from tfdist.runtime.threads import thread_variables
from tfdist.validation import quote

# They name the task that a process is: each gets its own value, or none.
_OWN = ("TF_CONFIG", "TFDIST_REJOIN", "TFDIST_HEARTBEAT")

_T = TypeVar("_T")


@dataclass(frozen=True)
class TaskResources:
    """The part of the machine that one task may use.

    Attributes:
        cores: The CPU cores to pin it to; none means all.
        env: The environment variables that limit it accordingly.
    """

    cores: tuple[int, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def usable_cores() -> list[int]:
    """Returns the CPU cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def gpu_ids(environ: Mapping[str, str] | None = None) -> list[str]:
    """Returns the GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    environ = os.environ if environ is None else environ
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        ids = [part.strip() for part in visible.split(",") if part.strip()]
        # CUDA stops reading at the first entry that is not a device.
        return ids[: ids.index("-1")] if "-1" in ids else ids
    driver = Path("/proc/driver/nvidia/gpus")
    found = list(driver.iterdir()) if driver.is_dir() else []
    if not found:
        found = [p for p in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)]
    return [str(i) for i in range(len(found))]


def divide(
    tasks: Sequence[str],
    computing: Sequence[str],
    *,
    cpus_per_task: str = "auto",
    gpus_per_task: str = "auto",
    cores: Sequence[int] | None = None,
    gpus: Sequence[str] | None = None,
) -> dict[str, TaskResources]:
    """Divides cores and GPUs among the tasks that compute.

    Cores are shared evenly, each by one task only, as long as there is one for
    each; with fewer cores than tasks nothing is pinned. The tasks that do not
    compute see no GPU and run on all cores with few threads.

    Args:
        tasks: The names of all tasks.
        computing: Those that compute gradients.
        cpus_per_task: "auto", "none" (pin nothing) or a number.
        gpus_per_task: "auto", "none" (hide nothing) or a number.
        cores: The cores to divide; all usable ones by default.
        gpus: The GPUs to divide; all visible ones by default.

    Raises:
        ConfigError: A number is given that the machine does not have.
    """
    cores = usable_cores() if cores is None else cores
    gpus = gpu_ids() if gpus is None else gpus
    core_parts = _parts(cores, len(computing), cpus_per_task, "--cpus-per-task", "core")
    gpu_parts = _parts(gpus, len(computing), gpus_per_task, "--gpus-per-task", "GPU")
    shares: dict[str, TaskResources] = {}
    for task in tasks:
        env: dict[str, str] = {}
        own: tuple[int, ...] = ()
        if task in computing:
            number = list(computing).index(task)
            if core_parts is not None:
                own = tuple(core_parts[number])
                env |= thread_variables(len(own))
            elif cpus_per_task == "auto":
                env |= thread_variables(1)  # Fewer cores than tasks: they take turns.
            if gpu_parts is not None and gpus:
                env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu_parts[number])
        else:
            if cpus_per_task != "none":
                env |= thread_variables(1)
            if gpus and gpus_per_task != "none":
                env["CUDA_VISIBLE_DEVICES"] = ""
        shares[task] = TaskResources(own, env)
    return shares


def _parts(
    things: Sequence[_T], count: int, wanted: str, flag: str, noun: str
) -> list[Sequence[_T]] | None:
    """Splits `things` into `count` parts; returns None to leave them shared."""
    if wanted == "none" or not count:
        return None
    if wanted == "auto":
        size = len(things) // count
        if size == 0:
            # GPUs: the first tasks get one each would make unequal replicas.
            return None
    elif wanted.isascii() and wanted.isdigit() and 0 < len(wanted) < 5 and int(wanted) > 0:
        size = int(wanted)
        if size * count > len(things):
            have = f"{len(things)} {noun}" + ("" if len(things) == 1 else "s")
            raise ConfigError(
                f"{flag}: {size} for each of {count} tasks is more than this machine's {have}; "
                f"give at most {len(things) // count}, or none"
            )
    else:
        raise ConfigError(f"{flag}: {wanted!r} is not auto, none or a number of {noun}s")
    return [things[i * size : (i + 1) * size] for i in range(count)]


def common_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of this process's environment that a task may inherit.

    Args:
        extra: Variables to be set for every task; only its PATH counts here.
    """
    env = {"PYTHONUNBUFFERED": "1", **os.environ}
    # `python` and `tfdist` must be those of the environment that this runs in.
    env["PATH"] = os.pathsep.join(
        [os.path.dirname(sys.executable), extra.get("PATH", env.get("PATH", os.defpath))]
    )
    for name in _OWN:
        env.pop(name, None)
    return env


def resolve_command(command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Checks that a program exists; `tfdist` is always that of this environment.

    Raises:
        ConfigError: No such program exists.
    """
    if (
        command[0] == "tfdist"
        and shutil.which("tfdist", path=os.path.dirname(sys.executable)) is None
    ):
        return [sys.executable, "-m", "tfdist", *command[1:]]  # Run from a source tree.
    if shutil.which(command[0], path=env["PATH"]) is None:
        raise ConfigError(f"launch: no such command: {quote(command[0])}; give a program to run")
    return list(command)
