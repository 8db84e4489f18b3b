"""The same job as a batch script for Slurm.

`tfdist` in each task of the step finds its peers in Slurm's variables. Slurm
has no rule for exit codes, so the script asks for another run itself.
"""

from __future__ import annotations

import re
import shlex

from tfdist.errors import ConfigError
from tfdist.launch.manifests import GRACE_SECONDS, MAX_RESTARTS, Workload

_MEMORY = re.compile(r"([0-9]+)([MGT])i?")


def sbatch(workload: Workload) -> str:
    """The script of a job with one task a node, or wherever there are CPUs if it has ps tasks.

    The image, the namespace and the volume are for Kubernetes: here the command
    runs in the environment that `sbatch` was called from.

    Raises:
        ConfigError: CPUs or memory are not what Slurm can ask for.
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
        "# srun does not take over --cpus-per-task since Slurm 22.05.",
        'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"',
        "",
        "code=0",
        "srun --label --kill-on-bad-exit=1 --distribution=block \\",
        f"    {shlex.join(workload.command)} || code=$?",
        "# 128 and above: a peer was lost, or the task was told to stop. Go on from the",
        "# last checkpoint.",
        f'if [ "$code" -ge 128 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {MAX_RESTARTS} ]; then',
        '    scontrol requeue "$SLURM_JOB_ID"',
        "fi",
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _mem_per_cpu(memory: re.Match[str], cpus: int) -> str:
    megabytes = int(memory[1]) * {"M": 1, "G": 1024, "T": 1024**2}[memory[2]]
    return f"{-(-megabytes // cpus)}M"
