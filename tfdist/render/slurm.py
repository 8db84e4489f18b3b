"""Writes a job as a batch script for Slurm.

`tfdist` in each task of the step finds its peers in Slurm's variables. Slurm
does not act on exit codes, so the script puts the job back in the queue itself.
"""

from __future__ import annotations

import posixpath
import re
import shlex

from tfdist.cluster.secret import VARIABLE as SECRET_VARIABLE
from tfdist.cluster.slurm import HOST_SUFFIX
from tfdist.errors import EXIT_CONFIG, EXIT_PREEMPTED
from tfdist.render.slurm_job import SlurmJob
from tfdist.render.variables import filled_in
from tfdist.render.workload import MAX_RESTARTS
from tfdist.runtime.heartbeat import SAVED_VARIABLE

# Added by `tfdist task` to the code of a command that failed for good.
NO_RETRY = 200
# The exit code of `tfdist task` if its command was stopped by a signal: below all failures.
STOPPED = 128

# 64 hexadecimal digits.
_DRAWN = "$(od -An -vtx1 -N32 /dev/urandom | tr -d ' \\n')"
# Copied next to its place and moved there, so that nobody ever sees half of it. If the nodes share
# the place after all, each makes its own copy, and the first one moves.
_STAGE = """
stage='
    set -e
    [ ! -e "$2" ] || exit 0
    part="$2.$SLURM_JOB_ID.$SLURM_NODEID"
    rm -rf "$part"
    mkdir -p "$(dirname "$2")"
    cp -R "$1" "$part"
    mv -T "$part" "$2" || { rm -rf "$part"; [ -e "$2" ]; }
'
""".strip()
# Ends the script where a line fails, as `set -e` does, but not within the functions and files that
# the line calls: those of modules and environments go on after what fails.
_TRAP = f"""
failed() {{
    [ "${{#BASH_SOURCE[@]}}" -le 2 ] || return
    echo "tfdist: render(--setup): $(sed -n "$2p" "$0"): failed with $1; nothing was started" >&2
    exit {EXIT_CONFIG}
}}
trap 'failed $? $LINENO' ERR
""".strip()
# The share of the time to save in that is left to put the job back in the queue.
_REQUEUE_SHARE = 6


def sbatch(job: SlurmJob) -> str:
    """Returns the batch script of a job.

    Workers alone have a fixed number on each node. With other tasks they run wherever CPUs are free
    or, with GPUs, as a heterogeneous job, whose first part is for the other tasks, without GPUs.
    """
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in _options(job)), ""]
    if job.other_tasks:
        roles = ",".join(f"{role}:{count}" for role, count in job.tasks.items())
        lines.append(f"export TFDIST_ROLES={roles}")
    if job.host_suffix:
        lines.append(f"export {HOST_SUFFIX}={job.host_suffix}")
    cpus = "SLURM_CPUS_PER_TASK_HET_GROUP_0" if job.is_heterogeneous else "SLURM_CPUS_PER_TASK"
    lines += [
        "# Only tasks that have it take part in the job.",
        f'export {SECRET_VARIABLE}="${{{SECRET_VARIABLE}:-{_DRAWN}}}"',
        "# srun does not take over --cpus-per-task since Slurm 22.05.",
        f'export SRUN_CPUS_PER_TASK="${cpus}"',
        "",
        *_setup(job),
        *_staging(job),
        *_step(job),
        *_ending(),
    ]
    return "\n".join(lines) + "\n"


def _options(job: SlurmJob) -> list[str]:
    per_cpu = f"--mem-per-cpu={-(-job.megabytes // job.cpus)}M"
    apart = [
        f"--nodes={job.workers // job.workers_here}",
        f"--ntasks-per-node={job.workers_here}",
        *([f"--gres=gpu:{job.gpus_here}"] if job.gpus_here else ()),
    ]
    if job.is_heterogeneous:
        # All parts have to ask for memory in the same way.
        parts = [
            [f"--ntasks={sum(job.other_tasks.values())}", per_cpu],
            [f"--ntasks={job.workers}", *apart, per_cpu],
        ]
    elif job.other_tasks:
        # Memory is for each node, and these tasks may share one with a worker.
        parts = [[f"--ntasks={sum(job.tasks.values())}", per_cpu]]
    else:
        memory = f"--mem={job.megabytes * job.workers_here}M"
        parts = [[f"--ntasks={job.workers}", *apart, memory]]
    named = {"time": job.time, "partition": job.partition, "account": job.account, "qos": job.qos}
    common = [
        f"--cpus-per-task={job.cpus}",
        *(f"--{option}={value}" for option, value in named.items() if value is not None),
        "--requeue",
        f"--signal=TERM@{job.grace}",
        *map(_quoted, job.options),
    ]
    output = ["--output=%x-%j.out", "--open-mode=append"]
    options = [f"--job-name={job.name}", *parts[0], *output, *common]
    for part in parts[1:]:
        options += ["hetjob", *part, *common]
    return options


def _quoted(option: str) -> str:
    """Returns an option whose value sbatch reads as one word: it knows quotes and backslashes."""
    match = re.fullmatch(r"(--[^\s=]+=|-\S+\s+(?!-))(.*)", option)
    if not match or _is_word(match[2]):
        return option
    return match[1] + '"' + re.sub(r'(["\\])', r"\\\1", match[2]) + '"'


def _is_word(text: str) -> bool:
    try:
        return len(shlex.split(text)) == 1
    except ValueError:  # A quote is not closed.
        return False


def _setup(job: SlurmJob) -> list[str]:
    lines = [_TRAP, *job.setup, "trap - ERR", ""] if job.setup else []
    for name in job.expand:
        told = (
            f"tfdist: render(--expand): \\${name} is not set in this job; submit it where that "
            "is set, or set it with --setup"
        )
        lines += [f'[ "${name}" ] || {{', f'    echo "{told}" >&2', f"    exit {EXIT_CONFIG}", "}"]
    return [*lines, ""] if job.expand else lines


def _staging(job: SlurmJob) -> list[str]:
    if not job.stage:
        return []
    lines = ["# To each node's disk, once a node.", _STAGE]
    nodes, group, indent = "$SLURM_JOB_NUM_NODES", "", ""
    if job.is_heterogeneous:
        lines += ["for group in 0 1; do", '    nodes="SLURM_JOB_NUM_NODES_HET_GROUP_$group"']
        nodes, group, indent = "${!nodes}", '--het-group="$group" ', "    "
    for source, target in job.stage:
        paths = f"{_word(source, job)} {_word(target.rstrip('/'), job)}"
        lines += [
            f'{indent}srun {group}--nodes="{nodes}" --ntasks="{nodes}" --ntasks-per-node=1 \\',
            f'{indent}    bash -c "$stage" stage {paths} || exit',
        ]
    return [*lines, *(["done"] if job.is_heterogeneous else ()), ""]


def _step(job: SlurmJob) -> list[str]:
    srun = "srun --kill-on-bad-exit=1 --distribution=block"
    srun += " --het-group=0,1" if job.is_heterogeneous else ""
    srun += "" if job.log_dir else " --label"
    task = f"{_wrapper(job)} task"
    task += f' --grace {job.grace - job.grace // _REQUEUE_SHARE} --record "$ends"'
    task += f" --log-dir {_word(job.log_dir, job)}" if job.log_dir else ""
    return [
        "# The ends that count are noted here until the job is over.",
        'ends="$PWD/.$SLURM_JOB_NAME-$SLURM_JOB_ID.ends"',
        "# Trainer makes this file at a new checkpoint; a program that saves by itself must.",
        f'export {SAVED_VARIABLE}="${{ends%.ends}}.saved"',
        f'rm -f "${SAVED_VARIABLE}"',
        "code=0",
        f"{srun} \\",
        *(f"    {words} \\" for words in _container(job)),
        f"    {task} -- \\",
        f"    {' '.join(_word(word, job) for word in job.command)} || code=$?",
    ]


def _container(job: SlurmJob) -> list[str]:
    """Returns the words between `srun` and the command, a line each."""
    if job.image is None:
        return []
    image = _word(job.image, job)
    if job.container == "pyxis":
        mounts = ",".join(['"$PWD:$PWD"', *(_word(mount, job) for mount in job.mounts)])
        return [
            f"--container-image={image} --container-mounts={mounts}",
            '--container-workdir="$PWD"',
        ]
    binds = " ".join(f"--bind {_word(mount, job)}" for mount in job.mounts)
    nvidia = "--nv " if job.gpus_here else ""
    return [f'apptainer exec {nvidia}--bind "$PWD" --pwd "$PWD" {binds}'.rstrip(), image]


def _ending() -> list[str]:
    return [
        "# A task that failed for good has noted its code; srun may give another, if it had to",
        "# kill a task that was stuck.",
        'if noted=$(grep -s -m 1 "^2" "$ends"); then code=$noted; fi',
        f"# {NO_RETRY} and above, by 'tfdist task': failed for good, "
        f"with that code less {NO_RETRY}.",
        f"# {STOPPED}, by 'tfdist task': told to stop, as before the time limit. Above it: a peer",
        "# was lost. The job goes on from its last checkpoint: each time that it was told to stop",
        f"# and has a new one, else {MAX_RESTARTS} times.",
        "again=",
        f'if [ "$code" -ge {NO_RETRY} ]; then',
        f"    code=$((code - {NO_RETRY}))",
        f'elif [ "$code" -eq {STOPPED} ] && [ -e "${SAVED_VARIABLE}" ]; then',
        f"    code={EXIT_PREEMPTED} again=1",
        f'elif [ "$code" -ge {STOPPED} ]; then',
        f'    [ "$code" -ne {STOPPED} ] || code={EXIT_PREEMPTED}',
        '    echo "$code" >>"$ends"',
        f'    if [ "$(grep -c . "$ends")" -gt {MAX_RESTARTS} ]; then',
        f'        echo "tfdist: not started again: {MAX_RESTARTS} restarts did not help" >&2',
        "    else",
        "        again=1",
        "    fi",
        "fi",
        'if [ "$again" ]; then',
        '    scontrol requeue "$SLURM_JOB_ID"',
        "else",
        f'    rm -f "$ends" "${SAVED_VARIABLE}"',
        "fi",
        'exit "$code"',
    ]


def _wrapper(job: SlurmJob) -> str:
    """Returns the `tfdist` to run the command with: the command itself where it is one."""
    first = job.command[0]
    return _word(first, job) if posixpath.basename(first) == "tfdist" else "tfdist"


def _word(text: str, job: SlurmJob) -> str:
    """Returns a word for bash, which fills in the variables of `job.expand` and nothing else."""
    return filled_in(text, job.expand, '"${{{}}}"'.format, shlex.quote)
