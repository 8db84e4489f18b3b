"""What becomes of pods by the rules of their controllers; their containers run a line of shell."""

from __future__ import annotations

import pytest

from tests.chaos.harness import FULL
from tests.pods.cluster import KINDS, Cluster, Run

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.cluster,
    pytest.mark.skipif(not FULL, reason="a minute for all; with TFDIST_CHAOS=full"),
]
JOBSETS = KINDS[:2]


def shell(cluster: Cluster, kind: str, line: str, flags: str = "--workers 2") -> Run:
    """A job in which $INDEX, $TYPE and, from 1 on, $LIFE tell the pods apart."""
    before = (
        "INDEX=${HOSTNAME##*-}; case $HOSTNAME in *chief*) TYPE=chief;; *ps*) TYPE=ps;; "
        "*) TYPE=worker;; esac; echo >> /runs/$TYPE$INDEX; LIFE=$(wc -l < /runs/$TYPE$INDEX)\n"
    )
    return cluster.apply(kind, f"{flags} --volume runs:/runs", ["sh", "-c", before + line])


def lives(run: Run, *tasks: str) -> list[int]:
    return [len(run.history(task)) for task in tasks]


def codes(run: Run, task: str) -> list[int | None]:
    return [pod.code for pod in run.history(task)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", [1, 2, 126, 127])
def test_what_is_for_good_ends_the_job(cluster: Cluster, kind: str, code: int) -> None:
    run = shell(cluster, kind, f"[ $INDEX = 0 ] || exit {code}; exec sleep 600")
    first = run.pod("worker/0")
    # The other one is told to end; what has no handler for that is killed.
    cluster.kubelet.grace = 1.0
    assert run.end() == "Failed"
    run.until_ended(first)
    assert lives(run, "worker/0", "worker/1") == [1, 1]
    assert codes(run, "worker/1") == [code]


@pytest.mark.parametrize("kind", JOBSETS)
@pytest.mark.parametrize(("code", "restarts"), [(137, 1), (138, 1), (143, 0)])
def test_what_starts_again(cluster: Cluster, kind: str, code: int, restarts: int) -> None:
    run = shell(
        cluster, kind, f"[ $INDEX$LIFE != 11 ] || exit {code}; trap 'exit 0' TERM; sleep 3 & wait"
    )
    assert run.end() == "Completed"
    assert run.job.restarts == restarts
    assert lives(run, "worker/0", "worker/1") == [1 + restarts, 2]


def test_a_tfjob_starts_a_pod_again_alone(cluster: Cluster) -> None:
    run = shell(cluster, "tfjob", "[ $INDEX$LIFE != 11 ] || exit 138")
    assert run.end() == "Completed"
    assert lives(run, "worker/0", "worker/1") == [1, 2]


def test_a_jobset_gives_up(cluster: Cluster) -> None:
    run = shell(cluster, "jobset", "exit 138", "--workers 1")
    assert run.end() == "Failed"
    assert lives(run, "worker/0") == [11]


@pytest.mark.parametrize("kind", KINDS)
def test_the_chief_ends_the_job(cluster: Cluster, kind: str) -> None:
    line = """trap 'exit 7' TERM
        if [ $TYPE = chief ]; then until [ -e /runs/ps -a -e /runs/worker ]; do sleep 0.1; done
        else touch /runs/$TYPE; sleep 600 & wait; fi"""
    run = shell(cluster, kind, line, "--workers 1 --ps 1")
    rest = [run.pod("ps/0"), run.pod("worker/0")]
    assert run.end() == "Completed"
    assert [run.until_ended(pod) for pod in rest] == [7, 7]


def test_a_pod_that_has_gone_does_not_answer(cluster: Cluster) -> None:
    run = shell(cluster, "tfjob", "[ $INDEX$LIFE != 11 ] || exit 138; exec sleep 600")
    run.until(lambda: len(run.history("worker/1")) == 2, "a new pod")
    old, new = run.history("worker/1")
    assert old.address != new.address
    assert "timed out" in cluster.network.answers(old.address)
    assert "refused" in cluster.network.answers(new.address)
    # Its name leads to the new one, in each spelling.
    caller = run.pod("worker/0")
    for name in ("job-worker-1", "job-worker-1.default", "job-worker-1.default.svc.cluster.local"):
        assert caller.run(["getent", "hosts", name]).stdout.split()[0] == new.address
    assert caller.run(["getent", "hosts", "job-worker-2"]).returncode == 2
