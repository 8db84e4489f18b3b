"""Reads the cluster from the variables of Open MPI and of MPICH and its kin, on one machine.

They give each process its rank and the number of processes, and nobody's address. On one machine
the addresses follow: the ports are derived from the process that has started all of them, which
each finds among its ancestors. Of processes on several machines nothing is known, so that they are
refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tfdist.cluster.address import MOST_PORTS, first_port
from tfdist.cluster.alone import WORKERS, reject_alone
from tfdist.cluster.spec import Jobs, check_index, check_jobs
from tfdist.validation import quote, reject

# The variables with the number of processes, the number of this one, and those on this machine.
_KINDS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"),
)
_LOOPBACK = "127.0.0.1"


def is_mpi(environ: Mapping[str, str]) -> bool:
    """Returns whether this is one of several processes that mpirun has started."""
    return WORKERS not in environ and _kind(environ) is not None


def parse_mpi(environ: Mapping[str, str]) -> tuple[Jobs, str, int]:
    """Returns the jobs, all of them workers, and the role and index of this process.

    Raises:
        ConfigError: The processes are on several machines, or a variable is missing or malformed.
    """
    kind = _kind(environ)
    assert kind is not None
    size_name, rank_name, here_name = kind
    size, rank = (_integer(environ, name) for name in (size_name, rank_name))
    if size > MOST_PORTS:
        reject(size_name, f"{size} processes; one machine runs up to {MOST_PORTS}")
    starter = _starter(rank_name)
    if environ.get(here_name, "") != environ[size_name] or starter is None:
        reject_alone(size_name, f"{size} processes, which are not known to be on one machine")
    port = first_port(starter, size)
    jobs = check_jobs({"worker": [f"{_LOOPBACK}:{port + n}" for n in range(size)]}, "MPI")
    return jobs, "worker", check_index(rank, "worker", jobs, rank_name, "MPI")


def _kind(environ: Mapping[str, str]) -> tuple[str, str, str] | None:
    return next((kind for kind in _KINDS if environ.get(kind[0], "1").strip() != "1"), None)


def _starter(rank_name: str) -> int | None:
    """Returns the nearest ancestor that has no rank itself; None where it cannot be seen."""
    process = os.getpid()
    while process > 0:
        try:
            folder = Path("/proc", str(process))
            if f"\0{rank_name}=".encode() not in b"\0" + (folder / "environ").read_bytes():
                return process
            # The name in parentheses may hold anything, also parentheses.
            process = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except PermissionError:
            return process  # It is another user's, so no process of this job.
        except OSError:
            return None
    return None


def _integer(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        reject(name, f"{quote(text)} is not an integer; mpirun sets it")
    return int(text)
