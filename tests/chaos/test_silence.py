"""Tasks that live and are stuck, without the launcher, as on Slurm and Kubernetes."""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import time
from collections.abc import Sequence

import pytest

from tests.chaos.harness import FULL, JOB, Program, Programs, python, size
from tfdist.launcher.ports import free_ports

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

LIMIT = 6.0
LATE = 2.0 if FULL else 30.0  # the suite's other processes run beside the short form
WITH_PS = {"chief": 1, "worker": 2, "ps": 1}
WORKERS = {"worker": 2}

# The cluster, and the task that it hits.
STOPPED = [
    (WITH_PS, "ps/0"),
    (WITH_PS, "chief/0"),
    (WITH_PS, "worker/1"),
    (WORKERS, "worker/0"),
    (WORKERS, "worker/1"),
]
# The cluster, and the fault.
STUCK = [
    (WITH_PS, "callback"),
    (WORKERS, "callback"),
    (WITH_PS, "loop"),
]


def start(
    programs: Programs, counts: dict[str, int], words: Sequence[str] = (sys.executable,), **env: str
) -> dict[str, Program]:
    ports = iter(free_ports(sum(counts.values())))
    cluster = {role: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for role, n in counts.items()}
    tasks = {}
    for role, number in counts.items():
        for index in range(number):
            config = {"cluster": cluster, "task": {"type": role, "index": index}}
            variables = {"TF_CONFIG": json.dumps(config), "TFDIST_STALL": str(LIMIT), **env}
            tasks[f"{role}/{index}"] = programs.start([*words, JOB], variables)
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


@pytest.mark.long
@pytest.mark.parametrize("trial", range(size(1, 10)))
def test_a_stopped_task_is_named(programs: Programs, trial: int) -> None:
    counts, victim = STOPPED[trial % len(STOPPED)]
    tasks = start(programs, counts, STEPS="100000", PAUSE="0.02")
    next(iter(tasks.values())).until("STEP 31 ")
    time.sleep(random.Random(trial).uniform(0.0, 0.5))
    stopped = time.time()
    tasks[victim].process.send_signal(signal.SIGSTOP)
    try:
        see_named(tasks, victim, stopped)
        assert tasks[victim].process.poll() is None, "the fault did not last"
    finally:
        tasks[victim].process.kill()


@pytest.mark.parametrize("trial", range(size(1, 10)))
def test_a_task_that_is_stuck_is_named(programs: Programs, trial: int) -> None:
    """In an endless callback of the first task, or a step of a worker that computes for ever."""
    counts, fault = STUCK[trial % len(STUCK)]
    tasks = start(programs, counts, python(), FAULTS=fault, VICTIMS="0", STEPS="100000")
    first = tasks[next(iter(counts)) + "/0"]
    if fault == "callback":
        at = first.until("FAULT callback").at
        try:
            see_named(tasks, next(iter(counts)) + "/0", at)
            assert first.process.poll() is None, "the fault did not last"
        finally:
            first.process.kill()
    else:
        # Which worker has the batch is the coordinator's affair.
        at = first.until("STEP 11 ").at
        see_named(tasks, "", at, by="lost a worker .*a batch has not been completed")
