"""Writes a job as a batch script for Slurm.

`tfdist` in each task of the step finds its peers in Slurm's variables. Slurm
does not act on exit codes, so the script requeues the job itself.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence

from tfdist.cluster.secret import VARIABLE as SECRET_VARIABLE
from tfdist.errors import ConfigError
from tfdist.render.workload import GRACE_SECONDS, MAX_RESTARTS, Workload

# 64 hexadecimal digits.
_DRAWN = "$(od -An -vtx1 -N32 /dev/urandom | tr -d ' \\n')"
_MEMORY = re.compile(r"([0-9]+)([MGT])i?")


def sbatch(workload: Workload) -> str:
    """Returns the script of a job: one task per node, or wherever CPUs are free if it has a ps.

    The image, the namespace and the volume are for Kubernetes: here the command
    runs in the environment that `sbatch` was called from.

    Raises:
        ConfigError: Slurm cannot request such CPUs or memory.
    """
    count = sum(workload.tasks.values())
    memory = _MEMORY.fullmatch(workload.memory)
    if not memory:
        raise ConfigError(
            f"render(--memory): {workload.memory!r} is not what Slurm takes, such as 8G or 512M"
        )
    if not workload.cpus.isdigit() or int(workload.cpus) < 1:
        raise ConfigError(f"render(--cpus): {workload.cpus!r} is not a whole number of 1 or more")
    options = [
        f"--job-name={workload.name}",
        f"--ntasks={count}",
        f"--cpus-per-task={workload.cpus}",
    ]
    if workload.ps:
        # Memory is for each node, and chief and ps may share one with a worker.
        options.append(f"--mem-per-cpu={_mem_per_cpu(memory, int(workload.cpus))}")
    else:
        options += [
            f"--nodes={count}",
            "--ntasks-per-node=1",
            f"--mem={memory[1]}{memory[2]}",
        ]
    if workload.gpus_per_worker:
        # Slurm gives all tasks of a step the same.
        options.append(f"--gpus-per-task={workload.gpus_per_worker}")
    options += [
        "--output=%x-%j.out",
        "--open-mode=append",
        "--requeue",
        f"--signal=TERM@{GRACE_SECONDS}",
    ]
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), ""]
    if workload.ps:
        roles = ",".join(f"{role}:{count}" for role, count in workload.tasks.items())
        lines.append(f"export TFDIST_ROLES={roles}")
    lines += [
        "# Only tasks that have it take part in the job.",
        f'export {SECRET_VARIABLE}="${{{SECRET_VARIABLE}:-{_DRAWN}}}"',
        "# srun does not take over --cpus-per-task since Slurm 22.05.",
        'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"',
        "",
        "code=0",
        "srun --label --kill-on-bad-exit=1 --distribution=block \\",
        f"    {_wrapper(workload.command)} task -- \\",
        f"    {shlex.join(workload.command)} || code=$?",
        "# 200 and above, by 'tfdist task': failed for good, with that code less 200.",
        "# 128 and above: a peer was lost, or the task was told to stop. Go on from the",
        "# last checkpoint.",
        'if [ "$code" -ge 200 ]; then',
        "    code=$((code - 200))",
        f'elif [ "$code" -ge 128 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {MAX_RESTARTS} ]; then',
        '    scontrol requeue "$SLURM_JOB_ID"',
        "fi",
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _wrapper(command: Sequence[str]) -> str:
    """Returns the `tfdist` to run the command with: the command itself where it is one."""
    return shlex.quote(command[0]) if posixpath.basename(command[0]) == "tfdist" else "tfdist"


def _mem_per_cpu(memory: re.Match[str], cpus: int) -> str:
    megabytes = int(memory[1]) * {"M": 1, "G": 1024, "T": 1024**2}[memory[2]]
    return f"{-(-megabytes // cpus)}M"
