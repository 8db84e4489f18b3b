"""What ps and worker tasks do under ParameterServerStrategy: serve until the chief is done.

`tf.distribute.Server` itself serves for ever. Here a task watches the chief's port, and
the chief, when it ends well, leaves every task a note through the servers themselves.
"""

from __future__ import annotations

import atexit
import pathlib
import socket
import sys
import time
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist.cluster.meeting import meet
from tfdist.errors import ConfigError, PeerError

if TYPE_CHECKING:
    from tfdist.cluster import Cluster, Task

# How often a task looks whether the chief is there, and how long it may seem away, in seconds.
_POLL = 0.5
_AWAY = 15.0
# How long the chief may take to show up at all; it imports TensorFlow first.
_START = 300.0


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
    meet(cluster)
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


def say_goodbye(cluster: Cluster) -> None:
    """Makes the chief tell the other tasks, when this process ends well, that it is done."""

    def leave_notes() -> None:
        if getattr(sys, "last_value", None) is not None:
            return  # An exception ends the process: the others must not take it for success.
        for task in cluster.tasks:
            if task.type in ("ps", "worker"):
                try:
                    with tf.device(f"/job:{task.type}/replica:0/task:{task.index}/device:CPU:0"):
                        tf.io.write_file(str(_note(cluster, task)), "done")
                except tf.errors.OpError:
                    continue  # It is gone; there is nobody to tell.

    atexit.register(leave_notes)


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
