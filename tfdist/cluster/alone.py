"""Refuses a process that is one of several, of whose addresses it is told nothing.

It would train a model of its own, and so would each of the others, and all would end with exit code
0. Where that is wanted, TFDIST_WORKERS is set and empty.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import NoReturn

from tfdist.validation import plural, quote, reject

WORKERS = "TFDIST_WORKERS"

# The variables with the number of processes and the number of this one: of torchrun, and of the
# starters of MPI programs that give no more.
_RANKED = (
    ("WORLD_SIZE", "RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    ("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
)
_FIRST = ("", "0")


def reject_alone(where: str, problem: str) -> NoReturn:
    """Raises the error for a process whose peers have no known addresses.

    Raises:
        ConfigError: Always.
    """
    reject(
        where,
        f"{problem}, and gives no addresses; start the tasks with 'tfdist launch --hosts', or set "
        f"{WORKERS} to the addresses of all of them, or to nothing ({WORKERS}=) where each is to "
        "train its own model",
    )


def refuse_alone(environ: Mapping[str, str]) -> None:
    """Rejects a process that others belong to, as its variables show, but not where they are.

    Raises:
        ConfigError: It is such a process.
    """
    if WORKERS in environ:
        return
    index = environ.get("JOB_COMPLETION_INDEX", "").strip()
    if index not in _FIRST:
        reject(
            "JOB_COMPLETION_INDEX",
            f"{quote(index)} means that there are other pods, but gives no addresses; set "
            f"{WORKERS} to the addresses of all of them, as 'tfdist render jobset' does, or to "
            f"nothing ({WORKERS}=) where each is to train its own model",
        )
    for size, rank in _RANKED:
        given = environ.get(size, "").strip()
        if given not in ("", "0", "1") and environ.get(rank, "").strip():
            reject_alone(size, f"{quote(given)} means that there are other processes")
    for name, hosts in _allocations(environ):
        if hosts > 1:
            reject_alone(name, f"means that the job has {plural(hosts, 'machine')}")


def _allocations(environ: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yields variables with the machines of a job, and how many they are."""
    file = environ.get("PBS_NODEFILE", "")  # PBS, Torque
    if file:
        with contextlib.suppress(OSError, UnicodeDecodeError), open(file) as lines:
            yield "PBS_NODEFILE", len({line.strip() for line in lines} - {""})
    # LSF: each machine and its slots.
    yield "LSB_MCPU_HOSTS", len(set(environ.get("LSB_MCPU_HOSTS", "").split()[::2]))
    yield "LSB_HOSTS", len(set(environ.get("LSB_HOSTS", "").split()))
    count = environ.get("NHOSTS", "") if "PE_HOSTFILE" in environ else ""  # Grid Engine
    yield "NHOSTS", int(count) if count.isascii() and count.isdigit() and len(count) < 7 else 0
    for name, separator in (("AZ_BATCH_HOST_LIST", ","), ("AZ_BATCH_NODE_LIST", ";")):
        yield name, len({host.strip() for host in environ.get(name, "").split(separator)} - {""})
    with contextlib.suppress(ValueError, RecursionError, AttributeError, TypeError):
        pools = json.loads(environ.get("CLUSTER_SPEC") or "{}").get("cluster", {})  # Vertex AI
        yield "CLUSTER_SPEC", sum(len(pool) for pool in pools.values())
