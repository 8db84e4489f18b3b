"""What ps and worker tasks do under ParameterServerStrategy: serve until the chief is done.

`tf.distribute.Server` itself serves for ever. Here a task watches the chief's port, and
the chief, when it ends well, leaves every task a note through the servers themselves.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist import ending, farewell
from tfdist.cluster.meeting import meet
from tfdist.errors import ConfigError, PeerError
from tfdist.heartbeat import Heart

if TYPE_CHECKING:
    from tfdist.cluster import Cluster, Task

# How often a task looks whether the chief is there, and how long it may seem away, in seconds.
_POLL = 0.5
_AWAY = 10.0
# How long the chief may take to show up at all; it imports TensorFlow first.
_START = 300.0
# How TensorFlow writes that a call to a ps failed.
_FROM_PS = re.compile(r"remote target /job:ps/replica:0/task:(\d+)")


def serve(cluster: Cluster, *, start_timeout: float = _START) -> bool:
    """Serves, where this task is a ps or a worker of a cluster with ps tasks.

    Args:
        cluster: The cluster this process is a task of.
        start_timeout: How long to wait for the chief, in seconds.

    Returns:
        True where this task has served and the chief is done: return from `main` then.
        False at once in any other task.

    Raises:
        ConfigError: The cluster has ps tasks but no chief to serve.
        PeerError: The chief did not come, or went away without having finished.
    """
    task = cluster.task
    if not cluster.has_ps or task.type not in ("ps", "worker"):
        return False
    if not cluster.jobs.get("chief"):
        raise ConfigError(
            f"cluster: {task} would serve for ever; parameter_server needs a chief task"
        )
    ending.install()
    heart = Heart()
    heart.write("meeting")
    meet(cluster)
    heart.write("serving")
    note = _note(cluster, task)
    note.unlink(missing_ok=True)
    jobs = {job: list(hosts) for job, hosts in cluster.jobs.items() if job != "evaluator"}
    # Collective and session options stay at their defaults; the server ends with the process.
    server = tf.distribute.Server(
        tf.train.ClusterSpec(jobs), job_name=task.type, task_index=task.index, protocol="grpc"
    )
    try:
        _wait_for_chief(cluster, note, start_timeout)
    finally:
        note.unlink(missing_ok=True)
        del server
    return True


def is_loss(error: tf.errors.OpError) -> bool:
    """Whether TensorFlow complains that a task is gone, and not about what it was to compute."""
    gone = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    # What a task held is gone with it, and the one that came in its place says so.
    return isinstance(error, gone) or "Unable to find the relevant tensor remote_handle" in str(
        error
    )


def lost_ps(error: Exception) -> list[str]:
    """Returns the ps tasks that did not answer, as an error of TensorFlow's names them."""
    return sorted({f"ps/{index}" for index in _FROM_PS.findall(str(error))})


@contextlib.contextmanager
def naming_lost_ps() -> Iterator[None]:
    """In the chief, turns TensorFlow's complaint about a lost ps into an error that names it.

    A lost worker is none: the coordinator hands its work to another one, or waits for it.

    Raises:
        PeerError: A ps was lost, and with it a part of the weights.
    """
    try:
        yield
    except tf.errors.OpError as error:
        found = lost_ps(error) if is_loss(error) else []
        if not found:
            raise
        raise PeerError(
            f"chief/0: {', '.join(found)} was lost, with its part of the weights; start the job "
            "again, to go on from the last checkpoint"
        ) from error


def say_goodbye(cluster: Cluster) -> None:
    """Makes the chief tell the other tasks, when this process ends well, that it is done."""
    for task in cluster.tasks:
        if task.type in ("ps", "worker"):
            farewell.at_exit(f"{task} to hear that all is done", partial(_tell, cluster, task))


def _tell(cluster: Cluster, task: Task) -> None:
    # Where an exception or a code ends the process, the others must not take it for success.
    if not farewell.ends_well():
        return
    # If the task is gone, there is nobody to tell.
    with (
        contextlib.suppress(tf.errors.OpError),
        tf.device(f"/job:{task.type}/replica:0/task:{task.index}/device:CPU:0"),
    ):
        tf.io.write_file(str(_note(cluster, task)), "done")


def _note(cluster: Cluster, task: Task) -> pathlib.Path:
    name = f"tfdist-{cluster.fingerprint()[:16]}-{task.type}-{task.index}.done"
    return pathlib.Path("/tmp") / name


def _wait_for_chief(cluster: Cluster, note: pathlib.Path, start_timeout: float) -> None:
    address = cluster.jobs["chief"][0]
    began = last_seen = time.monotonic()
    seen = False
    while not note.exists():
        now = time.monotonic()
        if _listens(address):
            seen, last_seen = True, now
        elif seen and now - last_seen > _AWAY:
            raise PeerError(
                f"{cluster.task}: chief/0 ({address}) went away without having finished; see its "
                "output for the cause"
            )
        elif not seen and now - began > start_timeout:
            raise PeerError(
                f"{cluster.task}: chief/0 ({address}) did not come within {start_timeout:.0f} s; "
                "see that it runs and that its address is right"
            )
        time.sleep(_POLL)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2.0):
            return True
    except OSError:
        return False
