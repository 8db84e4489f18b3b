"""Rendered jobs run as pods and are disturbed: they end with the weights of `tfdist launch`.

Bit for bit, those of the optimizer too; and every fault is seen to have happened.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.chaos.harness import FULL
from tests.chaos.undisturbed import AT, EPOCHS, EVERY, JOB, SPAN, launched, variables
from tests.pods.cluster import KINDS, Cluster, Run
from tests.pods.kubelet import Pod

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]
in_full = pytest.mark.skipif(not FULL, reason="half a minute; with TFDIST_CHAOS=full")
WORKERS = ("worker/0", "worker/1")
each_kind = pytest.mark.parametrize("kind", KINDS)


def start(cluster: Cluster, kind: str, flags: str = "--workers 2", **env: Any) -> Run:
    given = variables("/runs/checkpoints", **env)
    return cluster.apply(kind, f"{flags} --volume runs:/runs", ["python", JOB], given)


@pytest.fixture
def want() -> str:
    return launched("--workers 2")


def steps(run: Run, chief: str = "worker/0") -> list[int]:
    lines = [line for pod in run.history(chief) for line in pod.find(r"^STEP \d+$")]
    return [int(line.split()[1]) for line in lines]


def pods(run: Run) -> list[list[Pod]]:
    return [run.history(task) for task in WORKERS]


def assert_ends_with(run: Run, want: str, *tasks: str) -> None:
    assert run.end() == "Completed"
    for task in tasks or WORKERS:
        assert run.until_ended(run.pod(task)) == 0
        (line,) = run.pod(task).find("^END ")
        assert line.partition("END ")[2] == want


def resumed_at(pod: Pod) -> int:
    """The step of the checkpoint that a pod has gone on from."""
    (line,) = pod.find(r"resuming from .*checkpoint-\d+\.tfdist")
    match = re.search(r"checkpoint-0*(\d+)", line)
    assert match is not None
    return int(match[1])


def assert_new_addresses(cluster: Cluster, run: Run, old: list[Pod]) -> None:
    """Whoever calls the pods that were there before gets no answer."""
    new = [each[-1] for each in pods(run)]
    assert len({pod.address for pod in (*old, *new)}) == 4
    assert "timed out" in cluster.network.answers(old[0].address)
    assert "refused" in cluster.network.answers(new[0].address)


@in_full
@each_kind
def test_undisturbed(cluster: Cluster, want: str, kind: str) -> None:
    run = start(cluster, kind)
    run.until_line("worker/0", f"^STEP {AT}$")
    for task in WORKERS:
        alive = run.pod(task).probe()
        assert alive.returncode == 0, alive.stdout + alive.stderr
    assert_ends_with(run, want)
    assert steps(run) == list(range(1, EPOCHS * SPAN + 1))
    assert run.job.restarts == 0


@pytest.mark.parametrize("task", ["worker/1", "worker/0"])
@in_full
@each_kind
def test_a_worker_is_killed(cluster: Cluster, want: str, kind: str, task: str) -> None:
    run = start(cluster, kind)
    run.until_line("worker/0", f"^STEP {AT}$")
    old = [run.pod("worker/0"), run.pod("worker/1")]
    killed = run.pod(task)
    killed.kill()
    run.until(lambda: all(len(each) == 2 for each in pods(run)), "new pods")
    assert killed.code == 137
    # The other one has seen the loss itself, if the controller has not told it to end before.
    assert {pod.code for pod in old} - {137} <= {138, 143}
    run.until_line("worker/0", "resuming from")
    assert_new_addresses(cluster, run, old)
    assert resumed_at(run.pod("worker/0")) == EVERY
    assert_ends_with(run, want)
    assert run.job.restarts == (2 if kind == "tfjob" else 1)


@in_full
@each_kind
def test_the_old_names_lead_astray(cluster: Cluster, want: str, kind: str) -> None:
    """A cluster's DNS has caches: the names of new pods lead to the old ones for a while."""
    cluster.network.names.late = 5.0
    run = start(cluster, kind)
    run.until_line("worker/0", f"^STEP {AT}$")
    run.pod("worker/0").kill()
    run.until(lambda: all(len(each) == 2 for each in pods(run)), "new pods")
    assert_ends_with(run, want)


@in_full
@each_kind
def test_a_pod_is_deleted(cluster: Cluster, want: str, kind: str) -> None:
    run = start(cluster, kind)
    run.until_line("worker/0", f"^STEP {AT}$")
    old = [run.pod("worker/0"), run.pod("worker/1")]
    old[1].delete()
    run.until(lambda: all(len(each) == 2 for each in pods(run)), "new pods")
    assert [pod.code for pod in old] == [143, 143]
    assert old[1].find("SIGTERM: stopping after the next step")
    assert old[1].told is not None and old[1].ended is not None
    print(f"{kind}: saved and ended {old[1].ended - old[1].told:.1f} s after SIGTERM")
    before = max(steps(run))
    run.until_line("worker/0", "resuming from")
    assert_new_addresses(cluster, run, old)
    assert resumed_at(run.pod("worker/0")) == before
    assert_ends_with(run, want)
    # No step is lost, and no restart of the JobSet is counted.
    assert steps(run) == list(range(1, EPOCHS * SPAN + 1))
    assert run.job.restarts == (2 if kind == "tfjob" else 0)


@in_full
@each_kind
def test_a_mistake_of_the_user(cluster: Cluster, kind: str) -> None:
    run = start(cluster, kind, MISTAKE=AT)
    assert run.end() == "Failed"
    assert run.until_ended(run.pod("worker/1")) == 1
    assert run.pod("worker/1").find("^ValueError: a mistake of the user's$")
    assert [len(each) for each in pods(run)] == [1, 1] and run.job.restarts == 0


@in_full
@each_kind
def test_a_mistake_beside_parameter_servers(cluster: Cluster, kind: str) -> None:
    run = start(cluster, kind, "--workers 1 --ps 1", MISTAKE=AT)
    assert run.end() == "Failed"
    assert run.until_ended(run.pod("chief/0")) == 1
    assert run.pod("chief/0").find("^ValueError: a mistake of the user's$")
    assert [len(run.history(task)) for task in ("chief/0", "ps/0", "worker/0")] == [1, 1, 1]
    assert run.job.restarts == 0


@in_full
@each_kind
def test_a_wrong_configuration(cluster: Cluster, kind: str) -> None:
    run = start(cluster, kind, TFDIST_TRANSPORT="pigeon")
    assert run.end() == "Failed"
    codes = [run.until_ended(run.pod(task)) for task in WORKERS]
    assert 2 in codes
    assert any(each[0].find("^tfdist: TFDIST_TRANSPORT: 'pigeon' is given") for each in pods(run))
    assert [len(each) for each in pods(run)] == [1, 1] and run.job.restarts == 0


@in_full
@pytest.mark.parametrize("task", ["none", "chief/0", "ps/0", "worker/0"])
@each_kind
def test_parameter_server(cluster: Cluster, kind: str, task: str) -> None:
    want = launched("--chief 1 --ps 1 --workers 1")
    # One worker: two would step in any order.
    run = start(cluster, kind, "--workers 1 --ps 1")
    tasks = ("chief/0", "ps/0", "worker/0")
    if task != "none":
        run.until_line("chief/0", f"^STEP {AT}$")
        killed = run.pod(task)
        killed.kill()
        run.until(lambda: len(run.history(task)) == 2, "a new pod")
        assert killed.code == 137
    if task == "worker/0":
        # It comes back alone. The batch that it had may be in the weights once more than before.
        assert run.end() == "Completed"
        assert [len(run.history(each)) for each in tasks] == [1, 1, 2]
        assert steps(run, "chief/0") == list(range(1, EPOCHS * SPAN + 1))
    else:
        assert_ends_with(run, want, "chief/0")
    # The job ends with its chief: what serves beside it ends by itself or is told to.
    for each in tasks[1:]:
        assert run.until_ended(run.pod(each)) in (0, 143)
