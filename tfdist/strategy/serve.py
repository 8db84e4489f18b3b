"""Serves as a ps or worker task under ParameterServerStrategy until the chief is done.

`tf.distribute.Server` itself serves forever. Here a task watches the chief's port, and the
chief, when it ends without an error, says so to every task through the servers themselves: it
writes to a descriptor of the task's process, which no other user can reach and which needs no disk.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist.errors import ConfigError, PeerError
from tfdist.rendezvous.once import meet
from tfdist.runtime import excepthook, shutdown, sigterm
from tfdist.runtime.heartbeat import Heart
from tfdist.strategy.private_port import close_to_others

if TYPE_CHECKING:
    from tfdist.cluster import Cluster, Task

# Seconds between two checks of the chief's port; and for which it may not answer, or refuse: its
# machine refuses as soon as its process has ended.
_POLL = 0.25
_AWAY = 10.0
_REFUSED = 1.0
# Seconds that the chief may take to start; it imports TensorFlow first.
_START = 300.0
# Seconds that a task serves after SIGTERM: the chief may have got one too, and saves then.
_LINGER = 4.0
# The descriptor of the note: larger than those that a process has before TensorFlow starts, and
# smaller than the limits of how many it may have.
_NUMBER = 217
_DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
_MEMORY = getattr(os, "memfd_create", None)


def serve(cluster: Cluster, *, start_timeout: float = _START) -> bool:
    """Serves until the chief is done, if this task is a ps or a worker beside one.

    Args:
        cluster: The cluster of this task.
        start_timeout: The time to wait for the chief, in seconds.

    Returns:
        True if this task has served and the chief is done: return from `main` then.
        False, at once, in any other task.

    Raises:
        ConfigError: The cluster has ps tasks but no chief to serve.
        PeerError: The chief did not come, or ended without having finished.

    Example:
        At the top of a script that runs in every task of a cluster with ps tasks::

            cluster = tfdist.Cluster.from_environment()
            if tfdist.serve(cluster):
                raise SystemExit
            strategy = tfdist.build_strategy("auto", cluster)

        Elsewhere it returns at once, so the same script runs in one process too:

        >>> tfdist.serve(tfdist.Cluster.local())
        False
    """
    task = cluster.task
    if not cluster.has_ps or task.type not in ("ps", "worker"):
        return False
    if not cluster.jobs.get("chief"):
        raise ConfigError(
            f"cluster: {task} would serve forever; parameter_server needs a chief task"
        )
    excepthook.install()
    sigterm.end_process_one()
    heart = Heart()
    heart.write("meeting")
    meet(cluster)
    heart.write("serving")
    note = _Note()
    jobs = {job: list(hosts) for job, hosts in cluster.jobs.items() if job != "evaluator"}
    # Collective and session options stay at their defaults; the server ends with the process.
    server = tf.distribute.Server(
        tf.train.ClusterSpec(jobs), job_name=task.type, task_index=task.index, protocol="grpc"
    )
    close_to_others(cluster)
    sigterm.end_on_it()
    sigterm.linger(_LINGER)
    try:
        _wait_for_chief(cluster, note, start_timeout)
    finally:
        note.close()
        del server
    return True


def say_goodbye(cluster: Cluster) -> None:
    """Makes the chief tell the other tasks that it is done, when it ends without an error."""
    for task in cluster.tasks:
        if task.type in ("ps", "worker"):
            shutdown.at_exit(f"{task} to hear that all is done", partial(_tell, task))


def _tell(task: Task) -> None:
    # The other tasks must not take an exception or a nonzero exit code for success.
    if not shutdown.ends_well():
        return
    # An error means that the task has ended already.
    with (
        contextlib.suppress(tf.errors.OpError),
        tf.device(f"/job:{task.type}/replica:0/task:{task.index}/device:CPU:0"),
    ):
        tf.io.write_file(f"{_DESCRIPTORS}/{_NUMBER}", "done")


class _Note:
    """A file without a name to which the chief writes, under a number that it knows.

    Raises:
        ConfigError: A descriptor of that number is open in this process.
    """

    def __init__(self) -> None:
        try:
            os.fstat(_NUMBER)
        except OSError:
            pass  # It is free.
        else:
            raise ConfigError(
                f"serve: the file descriptor {_NUMBER} is open in this process, and needed for the "
                "chief to say that it is done; close it"
            )
        with tempfile.TemporaryFile() if _MEMORY is None else open(_MEMORY("tfdist"), "wb") as file:
            os.dup2(file.fileno(), _NUMBER, inheritable=False)

    def is_written(self) -> bool:
        """Returns whether the chief has written to it."""
        return os.fstat(_NUMBER).st_size > 0

    def close(self) -> None:
        """Frees the number."""
        os.close(_NUMBER)


def _wait_for_chief(cluster: Cluster, note: _Note, start_timeout: float) -> None:
    address = cluster.jobs["chief"][0]
    began = last_seen = time.monotonic()
    seen = False
    while not note.is_written():
        now = time.monotonic()
        there, patience = _listens(address)
        if not there:
            sigterm.release_after_it()
        if there:
            seen, last_seen = True, now
        elif seen and now - last_seen > patience and not note.is_written():
            raise PeerError(
                f"{cluster.task}: chief/0 ({address}) went away without having finished; see its "
                "output for the cause"
            )
        elif not seen and now - began > start_timeout:
            raise PeerError(
                f"{cluster.task}: chief/0 ({address}) did not come within {start_timeout:.0f} s; "
                "check that it runs and that its address is right"
            )
        time.sleep(_POLL)


def _listens(address: str) -> tuple[bool, float]:
    """Returns whether a port is open, and for how many seconds it may be as it is."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2.0):
            return True, _AWAY
    except ConnectionRefusedError:
        return False, _REFUSED
    except OSError:
        return False, _AWAY
