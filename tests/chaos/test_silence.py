"""Tasks that live and are stuck, without the launcher, as on Slurm and Kubernetes."""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import time

import pytest

from tests.chaos.harness import FULL, JOB, Program, Programs, size
from tfdist.launch.ports import free_ports

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

LIMIT = 6.0
LATE = 2.0 if FULL else 30.0  # the suite's other processes run beside the short form
WITH_PS = {"chief": 1, "worker": 2, "ps": 1}
WORKERS = {"worker": 2}

# What goes wrong: the cluster, the fault, the task that it hits, and who is named for it.
STOPPED = [
    (WITH_PS, "chief/0"),
    (WITH_PS, "ps/0"),
    (WITH_PS, "worker/1"),
    (WORKERS, "worker/0"),
    (WORKERS, "worker/1"),
]
IN_CI = ("ps/0", "chief/0")


def start(programs: Programs, counts: dict[str, int], **env: str) -> dict[str, Program]:
    ports = iter(free_ports(sum(counts.values())))
    cluster = {role: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for role, n in counts.items()}
    tasks = {}
    for role, number in counts.items():
        for index in range(number):
            config = {"cluster": cluster, "task": {"type": role, "index": index}}
            variables = {"TF_CONFIG": json.dumps(config), "TFDIST_STALL": str(LIMIT), **env}
            tasks[f"{role}/{index}"] = programs.start([sys.executable, JOB], variables)
    return tasks


def see_named(tasks: dict[str, Program], lost: str, since: float, by: str = "") -> None:
    """All but the lost one end with 138, and name it, within the limit and two seconds."""
    for name, task in tasks.items():
        if name == lost:
            continue
        assert task.end(LIMIT + 60) == 138, f"{name}\n{task.text()}"
        ended = time.time() - since
        last = task.find(r"^tfdist: |PeerError")[-1]
        assert re.search(by or rf"lost [\w/, ]*{lost}", last), f"{name}\n{task.text()}"
        print(f"{name}: ended {last.at - since:.1f} s after it, limit {LIMIT:.0f} s: {last}")
        assert ended > 2.0, "it was not waited for"
        assert last.at - since < LIMIT + LATE, task.text()


@pytest.mark.parametrize("trial", range(size(1, 10)))
@pytest.mark.parametrize(
    ("counts", "victim"),
    [case for case in STOPPED if FULL or (case[0] is WITH_PS and case[1] in IN_CI)],
)
def test_a_stopped_task_is_named(
    programs: Programs, counts: dict[str, int], victim: str, trial: int
) -> None:
    tasks = start(programs, counts, STEPS="100000", PAUSE="0.02")
    next(iter(tasks.values())).until("STEP 31 ")
    time.sleep(random.Random(f"{victim} {trial}").uniform(0.0, 0.5))
    stopped = time.time()
    tasks[victim].process.send_signal(signal.SIGSTOP)
    try:
        see_named(tasks, victim, stopped)
        assert tasks[victim].process.poll() is None, "the fault did not last"
    finally:
        tasks[victim].process.kill()


@pytest.mark.parametrize("trial", range(size(1, 10)))
@pytest.mark.parametrize("counts", [WITH_PS, WORKERS] if FULL else [WITH_PS])
def test_a_task_in_an_endless_callback_is_named(
    programs: Programs, counts: dict[str, int], trial: int
) -> None:
    first = next(iter(counts)) + "/0"
    tasks = start(programs, counts, FAULTS="callback", VICTIMS="0", STEPS="100000")
    fault = tasks[first].until("FAULT callback")
    try:
        see_named(tasks, first, fault.at)
        assert tasks[first].process.poll() is None, "the fault did not last"
    finally:
        tasks[first].process.kill()


@pytest.mark.skipif(not FULL, reason="half a minute")
@pytest.mark.parametrize("trial", range(size(1, 10)))
def test_a_worker_whose_step_never_ends_ends_the_job(programs: Programs, trial: int) -> None:
    """Which worker has the batch is the coordinator's affair: all that can be said is that."""
    tasks = start(programs, WITH_PS, FAULTS="loop", VICTIMS="0", STEPS="100000")
    tasks["chief/0"].until("FAULT loop")
    steps = tasks["chief/0"].until("STEP 11 ")
    see_named(tasks, "", steps.at, by="lost a worker .*a batch has come to no end")
