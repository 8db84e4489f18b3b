"""Processes of mpirun: those on one machine find each other, others are refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tfdist.cluster import Cluster, mpi
from tfdist.errors import ConfigError

OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
}
HYDRA = {"PMI_SIZE": "3", "PMI_RANK": "2", "MPI_LOCALNRANKS": "3"}


@pytest.mark.parametrize("environ", [OPEN_MPI, HYDRA], ids=["Open MPI", "PMI"])
def test_processes_of_one_machine_are_workers(environ: dict[str, str]) -> None:
    cluster = Cluster.from_environment(environ)
    assert str(cluster.task) == "worker/2" and cluster.num_workers == 3
    assert cluster.source == "MPI"
    first = int(cluster.addresses[0].rpartition(":")[2])
    assert 20000 <= first < 32000
    assert cluster.addresses == tuple(f"127.0.0.1:{first + n}" for n in range(3))


def test_one_process_is_alone() -> None:
    assert Cluster.from_environment(dict.fromkeys(OPEN_MPI, "1")).is_local
    assert Cluster.from_environment({**HYDRA, "TFDIST_WORKERS": ""}).is_local


def test_with_addresses_by_hand_the_rank_is_the_index() -> None:
    for environ in (OPEN_MPI, HYDRA):
        cluster = Cluster.from_environment({**environ, "TFDIST_WORKERS": "n[1-3]:2222"})
        assert cluster.task.address == "n3:2222"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            "OMPI_COMM_WORLD_SIZE: 3 processes, which are not known to be on one machine, and "
            "gives no addresses; start the tasks with 'tfdist launch --hosts', or set "
            "TFDIST_WORKERS to the addresses of all of them, or to nothing",
        ),
        ({"OMPI_COMM_WORLD_RANK": "x"}, "OMPI_COMM_WORLD_RANK: 'x' is not an integer"),
        ({"OMPI_COMM_WORLD_RANK": ""}, "OMPI_COMM_WORLD_RANK: '' is not an integer"),
        ({"OMPI_COMM_WORLD_RANK": "3"}, "OMPI_COMM_WORLD_RANK: 3 is out of range"),
        ({"OMPI_COMM_WORLD_SIZE": "two"}, "OMPI_COMM_WORLD_SIZE: 'two' is not an integer"),
    ],
)
def test_what_says_too_little_is_refused(changes: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster.from_environment({**OPEN_MPI, **changes})
    assert str(caught.value).startswith(line)


def test_a_starter_that_cannot_be_seen_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where each process has a container of its own."""
    monkeypatch.setattr(mpi, "_starter", lambda name: None)
    with pytest.raises(ConfigError, match="not known to be on one machine"):
        Cluster.from_environment(OPEN_MPI)


STARTER = """
import os, subprocess, sys
processes = []
for rank in "01":
    environ = {
        **os.environ,
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    words = [sys.executable, "-m", "tfdist", "check", "--wait", "30"]
    if rank == "1":  # As a script of the user's around it does.
        words = ["sh", "-c", '"$@"; exit $?', "sh", *words]
    processes.append(subprocess.Popen(words, env=environ))
sys.exit(max(process.wait() for process in processes))
"""


@pytest.mark.cluster
def test_real_processes_meet() -> None:
    command = [sys.executable, "-c", STARTER]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all 2 tasks met\n") == 2
