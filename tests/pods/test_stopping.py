"""A pod is told to end, where nothing is saved: its process 1 does so in under five seconds.

After that, which is the grace period here, the kubelet would kill it, and its code be another one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import psutil
import pytest

from tests.chaos import undisturbed
from tests.chaos.harness import FULL, JOB
from tests.pods.cluster import Cluster, Run
from tests.pods.kubelet import Pod

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.cluster,
    pytest.mark.skipif(not FULL, reason="half a minute; with TFDIST_CHAOS=full"),
]

TINY = ["python", JOB]
LEARNING = ["python", undisturbed.JOB]
SAVES = undisturbed.variables("/tmp/saved", pause=1.0)
LONG = {"STEPS": 5000, "PAUSE": 0.05}
SERVED = ["chief/0", "ps/0", "worker/0"]
TRAIN = ["tfdist", "train", "--model", "small_cnn", "--epochs", "500"]
# The command, and what it is given: a program of a user's, and tfdist's own.
PROGRAMS = pytest.mark.parametrize(
    ("command", "env"),
    [
        pytest.param(LEARNING, SAVES, id="own"),
        pytest.param(TRAIN, {}, id="train"),
    ],
)


def phase(pod: Pod) -> str:
    """What its heartbeat says."""
    said = pod.run(["cat", "/dev/shm/tfdist-heartbeat"]).stdout
    return str(json.loads(said)["phase"]) if said else ""


def imports(pod: Pod) -> bool:
    """Whether a process of it has begun to load TensorFlow."""
    try:
        files = [file.path for each in pod.processes for file in each.memory_maps()]
    except psutil.Error:
        return False
    return any("libtensorflow" in path for path in files)


def without(absent: str, command: Sequence[str]) -> list[str]:
    """A command that one index does not run."""
    waits = f'[ "$JOB_COMPLETION_INDEX" != {absent} ] || exec sleep 600; exec "$@"'
    return ["sh", "-c", waits, "sh", *command]


def assert_ends(cluster: Cluster, run: Run, task: str) -> Pod:
    cluster.kubelet.grace = 5.0
    pod = run.pod(task)
    pod.delete()
    assert run.until_ended(pod) == 143, pod.text()
    assert pod.told is not None and pod.ended is not None
    print(f"{task}: ended {pod.ended - pod.told:.1f} s after SIGTERM")
    return pod


@PROGRAMS
def test_in_the_meeting(cluster: Cluster, command: list[str], env: dict[str, object]) -> None:
    run = cluster.apply("jobset", "--workers 2", without("1", command), env)
    run.until(lambda: phase(run.pod("worker/0")) == "meeting", "the meeting")
    pod = assert_ends(cluster, run, "worker/0")
    assert pod.find("SIGTERM: ended; nothing was saved by that")


@PROGRAMS
def test_while_tensorflow_is_imported(
    cluster: Cluster, command: list[str], env: dict[str, object]
) -> None:
    run = cluster.apply("jobset", "--workers 2", command, env)
    run.until(lambda: imports(run.pod("worker/0")), "the import")
    pod = assert_ends(cluster, run, "worker/0")
    # What the chief says when it has TensorFlow.
    assert not pod.find("strategy multi_worker_mirrored")


def test_in_training_that_saves_nothing(cluster: Cluster) -> None:
    run = cluster.apply("jobset", "--workers 2", TINY, LONG)
    run.until_line("worker/0", "^STEP 11 ")
    pod = assert_ends(cluster, run, "worker/1")
    assert pod.find("SIGTERM: ended; nothing was saved by that")
    # What it leaves alone is lost: all start again.
    run.until(lambda: len(run.history("worker/0")) == 2, "a new pod")
    assert run.history("worker/0")[0].code in (138, 143)


@pytest.mark.parametrize("task", SERVED)
def test_beside_parameter_servers(cluster: Cluster, task: str) -> None:
    run = cluster.apply("jobset", "--workers 1 --ps 1", TINY, LONG)
    run.until_line("chief/0", "^STEP 11 ")
    assert_ends(cluster, run, task)


def test_a_pod_of_each_task_at_once(cluster: Cluster) -> None:
    """As where the job is deleted: ps and worker serve until the chief has saved."""
    env = {**LONG, "DIR": "/runs/checkpoints", "EVERY": 1000}
    run = cluster.apply("jobset", "--workers 1 --ps 1 --volume runs:/runs", TINY, env)
    run.until_line("chief/0", "^STEP 11 ")
    run.job.delete()
    assert [run.until_ended(run.pod(task)) for task in SERVED] == [143, 143, 143]
    assert run.pod("chief/0").find("which is saved; start again to continue")
    again = cluster.apply("jobset", "--workers 1 --ps 1 --volume runs:/runs", TINY, env)
    again.until_line("chief/0", "resuming from")
    again.job.delete()
    for task in SERVED:
        again.until_ended(again.pod(task))
