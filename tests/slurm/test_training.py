"""Training on a real Slurm of two nodes that is disturbed: it ends as undisturbed, to the bit.

The same job under `tfdist launch`, with the same seed and as many threads, ends so too.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import FULL, Programs, wait
from tests.chaos.undisturbed import AT, EPOCHS, EVERY, JOB, SPAN, launched, variables
from tests.slurm.batch import Batch, Batches

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]
in_full = pytest.mark.skipif(not FULL, reason="half a minute; with TFDIST_CHAOS=full")


def start(batches: Batches, env: dict[str, Any] | None = None, **job: Any) -> Batch:
    # By name, so that the gradients go by wire: else these nodes would find their common memory.
    given = variables(batches.folder / "checkpoints", TFDIST_TRANSPORT="ring") | (env or {})
    return batches.submit([sys.executable, JOB], env=given, **{"workers": 2} | job)


def steps(job: Batch) -> list[int]:
    return [int(line.rpartition(" ")[2]) for line in job.find(r": STEP \d+$")]


def until_step(job: Batch, number: int) -> None:
    job.until(rf": STEP {number}$")


def end_of(job: Batch) -> str:
    """The hash of weights and optimizer, and the last metrics, the same on all that have them."""
    assert job.end() == 0, job.text()
    ends = [line.partition("END ")[2] for line in job.find(": END ")]
    # A job that was told to stop just as it ended has come back, with nothing more to do.
    assert len({end.partition(" ")[0] for end in ends}) == 1, job.text()
    assert ends[0] == ends[min(1, len(ends) - 1)], job.text()
    return ends[0]


@pytest.fixture
def want() -> str:
    return launched("--workers 2")


def resumed_at(job: Batch, since: int) -> int:
    """The step of the checkpoint that a job continues from."""
    line = job.until(r"resuming from .*checkpoint-\d+\.tfdist", since)
    match = re.search(r"checkpoint-0*(\d+)", line)
    assert match is not None
    return int(match[1])


@in_full
def test_undisturbed(batches: Batches, want: str) -> None:
    job = start(batches)
    assert end_of(job) == want
    assert steps(job) == list(range(1, EPOCHS * SPAN + 1))
    assert job.restarts == 0


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=in_full)])
def test_a_task_is_killed(batches: Batches, want: str, rank: int) -> None:
    job = start(batches)
    until_step(job, AT)
    job.task(rank, ("node9", "node10")[rank]).kill()
    since = job.until_back()
    # It counts, as a time limit does not.
    (ends,) = batches.folder.glob(".*.ends")
    assert ends.read_text() == "138\n"
    assert resumed_at(job, since) == EVERY
    assert end_of(job) == want
    assert job.restarts == 1
    assert not ends.exists()


@in_full
def test_the_time_limit_comes(batches: Batches, want: str) -> None:
    """Slurm looks each half minute, and may be a minute early: the job has to last as long."""
    job = start(batches, {"PAUSE": 1.5}, time="2", grace=20)
    until_step(job, 2)
    since = job.until_back(300)
    before = max(steps(job))
    assert job.find("SIGTERM"), job.text()
    # No step is lost, and no failure is counted.
    assert resumed_at(job, since) == before
    assert not list(batches.folder.glob(".*.ends"))
    assert end_of(job) == want
    assert steps(job) == list(range(1, EPOCHS * SPAN + 1))


@in_full
def test_told_to_stop(batches: Batches, want: str) -> None:
    job = start(batches)
    until_step(job, AT)
    batches.nodes.run("scancel", "--signal=TERM", job.number)
    since = job.until_back()
    assert job.number in batches.nodes.run("squeue", "--me", "-h", "-o", "%A").split()
    before = max(steps(job))
    assert resumed_at(job, since) == before
    assert not list(batches.folder.glob(".*.ends"))
    assert end_of(job) == want
    assert steps(job) == list(range(1, EPOCHS * SPAN + 1))


@in_full
def test_a_node_goes_down(batches: Batches, want: str) -> None:
    nodes = batches.nodes
    job = start(batches)
    until_step(job, AT)
    nodes.power_off("node10")
    try:
        wait(lambda: job.state == "PENDING", 180, "the job's return to the queue")
        assert nodes.state("node10").startswith("down"), nodes.state("node10")
    finally:
        nodes.power_on("node10")
    assert end_of(job) == want
    assert job.restarts == 1 and job.find("resuming from"), job.text()


@in_full
def test_cancelled_and_submitted_again(batches: Batches, want: str) -> None:
    job = start(batches)
    until_step(job, AT)
    batches.nodes.run("scancel", job.number)
    job.end()
    assert job.state == "CANCELLED" and job.restarts == 0
    again = start(batches)
    assert resumed_at(again, 0) >= EVERY
    assert end_of(again) == want


@in_full
def test_a_mistake_of_the_user(batches: Batches, want: str) -> None:
    job = start(batches, {"MISTAKE": AT})
    assert job.end() == 1, job.text()
    assert job.state == "FAILED" and job.restarts == 0
    assert job.find("1: ValueError: a mistake of the user's"), job.text()
    assert not list(batches.folder.glob(".*.ends"))
    again = start(batches)
    assert resumed_at(again, 0) == EVERY
    assert end_of(again) == want


@in_full
def test_two_jobs_in_one_directory(batches: Batches, want: str) -> None:
    # Slow enough for the second one to come, to wait and to be refused meanwhile.
    first = start(batches, {"PAUSE": 1.0})
    until_step(first, 2)
    # Its chief is on the other node.
    second = start(batches, {"TFDIST_WAIT": 5}, name="second", workers_per_node=2)
    assert second.end() == 2, second.text()
    assert second.find(r"checkpoint_dir: .* is in use by another job \(process \d+ on node9, ")
    assert second.restarts == 0 and not steps(second)
    assert end_of(first) == want
    assert first.restarts == 0


@in_full
@pytest.mark.parametrize("task", ["none", "chief/0", "ps/0", "worker/0"])
def test_parameter_server(batches: Batches, task: str) -> None:
    want = launched("--chief 1 --ps 1 --workers 1")
    # One worker, on a node of its own: two would step in any order.
    job = start(batches, workers=1, ps=1, workers_per_node=1)
    if task != "none":
        until_step(job, AT)
        rank = ["chief/0", "ps/0", "worker/0"].index(task)
        job.task(rank, "node9" if task == "worker/0" else "node10").kill()
        job.until_back()
    assert end_of(job) == want
    assert job.restarts == (task != "none")


@in_full
def test_an_evaluator_beside_a_job_that_is_disturbed(batches: Batches, programs: Programs) -> None:
    def flags(folder: Path) -> list[str]:
        given = {"output_dir": folder, "checkpoint_dir": folder / "checkpoints"}
        small = {"model": "small_cnn", "image_size": 16, "epochs": 4, "per_replica_batch": 8}
        words = [f"--{name}={value}" for name, value in (small | given).items()]
        return [sys.executable, "-m", "tfdist", "train", "--base-learning-rate=0.5", *words]

    here, there = batches.folder / "launched", batches.folder / "slurm"
    launched = programs.launch("--workers 2 --evaluator 1 --cpus-per-task 1", flags(here))
    assert launched.end() == 0, launched.text()
    job = batches.submit(flags(there), workers=2, evaluator=1, workers_per_node=2)
    job.until("epoch 1/4 done")
    job.task(1, "node9").kill()
    job.until_back()
    assert job.end() == 0, job.text()
    results, histories = [], []
    for folder in (here, there):
        histories.append((folder / "history.json").read_text())
        lines = (folder / "evaluation.jsonl").read_text().splitlines()
        results.append([{**json.loads(line), "saved": None} for line in lines])
    assert histories[0] == histories[1]
    assert results[0] == results[1]
    assert [line["epoch"] for line in results[1]] == [1, 2, 3, 4]
