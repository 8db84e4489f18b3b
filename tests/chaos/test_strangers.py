"""Somebody on the same network, without the job's secret: whom a job reaches and is reached by.

The tasks listen on an address that another network namespace reaches, as on a cluster. There a
stranger, who has the same program, cluster and flags but another secret, takes an absent worker's
place in the meeting and calls the ring. The job ends as undisturbed.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import time
from collections.abc import Iterator

import pytest

from tests.chaos.harness import JOB, Program, Programs, size
from tests.chaos.outside import Outside, make_outside
from tfdist.launcher.ports import free_ports

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

SECRET = "a secret of this job's"

# Calls a port until the other side has been greeted so often, sends a wrong proof each time, and
# says how each call has ended. What it sends is made as the ring makes it.
CALLER = """
import os, socket, sys, time
address, port, want = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
greeted = believed = 0
until = time.monotonic() + 120
while greeted < want and time.monotonic() < until:
    try:
        with socket.create_connection((address, port), timeout=2) as caller:
            caller.settimeout(10)
            if len(caller.recv(42)) == 42:
                greeted += 1
                place = b"[2, 1, 0, 0]"
                caller.sendall(b"tfdist/3 " + os.urandom(16).hex().encode() + b"\\n")
                caller.sendall(len(place).to_bytes(4, "big") + os.urandom(32) + place)
                believed += bool(caller.recv(1))
    except OSError:
        time.sleep(0.005)
print(f"GREETED {greeted} BELIEVED {believed}", flush=True)
"""


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    with make_outside() as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed() -> list[str]:
    """The end of a job that nobody disturbs, once it is known."""
    return []


def config(addresses: list[str], index: int) -> str:
    return json.dumps(
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    )


def task(programs: Programs, addresses: list[str], index: int, ring: int) -> Program:
    env = {
        "TF_CONFIG": config(addresses, index),
        "TFDIST_SECRET": SECRET,
        "TFDIST_RING_PORT": str(ring),
        "TFDIST_WAIT": "120",
        "STEPS": "30",
        "EPOCHS": "1",
    }
    return programs.start([sys.executable, JOB], env)


def end_of(tasks: list[Program]) -> str:
    for each in tasks:
        assert each.end() == 0, each.text()
    ends = [each.find(r"END \d+")[0].partition(" at=")[0] for each in tasks]
    assert ends[0] == ends[1]
    return ends[0]


@pytest.mark.long
@pytest.mark.parametrize("trial", range(size(1, 20)))
def test_a_stranger_neither_joins_nor_ends_a_job(
    programs: Programs, outside: Outside, undisturbed: list[str], trial: int
) -> None:
    first, second, ring = free_ports(3)
    addresses = [f"{outside.address}:{port}" for port in (first, second)]
    if not undisturbed:
        undisturbed.append(end_of([task(programs, addresses, i, ring) for i in range(2)]))
    tasks = [task(programs, addresses, 0, ring)]
    # It calls worker/0 in the name of worker/1, which is not there yet.
    stranger = programs.start(
        outside.command(sys.executable, "-m", "tfdist", "train"),
        {
            "TF_CONFIG": config(addresses, 1),
            "TFDIST_SECRET": f"a guess: {trial}",
            "TFDIST_WAIT": "8",
        },
    )
    assert stranger.end() in (2, 138), stranger.text()
    assert stranger.find("worker/0"), stranger.text()
    assert tasks[0].process.poll() is None, tasks[0].text()
    caller = programs.start(
        outside.command(sys.executable, "-c", CALLER, outside.address, str(ring), "1")
    )
    time.sleep(random.Random(trial).uniform(0.0, 1.0))
    tasks.append(task(programs, addresses, 1, ring))
    assert end_of(tasks) == undisturbed[0]
    assert caller.end() == 0
    assert caller.find("GREETED 1 BELIEVED 0"), caller.text()


@pytest.mark.parametrize("jobs", ["--workers 2", "--chief 1 --ps 1 --workers 1"][: size(0, 2)])
@pytest.mark.parametrize("trial", range(size(0, 20)))
def test_tensorflows_ports_of_a_local_job_are_reached_from_here_only(
    programs: Programs, outside: Outside, jobs: str, trial: int
) -> None:
    job = programs.launch(jobs, ["python", JOB], STEPS="100000", EPOCHS="1", PAUSE="0.02")
    job.until("STEP 11 ")
    job.tasks()
    assert len(job.ports) == sum(map(int, jobs.split()[1::2]))
    for port in job.ports:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
        probe = f"import socket; socket.create_connection(({outside.address!r}, {port}), timeout=3)"
        called = programs.start(outside.command(sys.executable, "-c", probe))
        assert called.end() == 1 and called.find("Error"), called.text()
    job.process.terminate()
    assert job.end() in (138, 143), job.text()
