"""Serves as a ps or worker task under ParameterServerStrategy until the chief is done.

`tf.distribute.Server` itself serves forever. Here a task watches the chief's port and reads the
chief's status (`beats.py`): that it runs, that it has lost a task, or that it is done.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist.collectives.peer_errors import lost
from tfdist.errors import ConfigError, PeerError
from tfdist.rendezvous.once import meet
from tfdist.runtime import excepthook, sigterm
from tfdist.runtime.heartbeat import HeartbeatWriter
from tfdist.runtime.timeouts import SuspendAwareClock, patience, stall_seconds
from tfdist.strategy.beats import BEAT, DONE, LOST, StatusFile
from tfdist.strategy.private_port import close_to_others

if TYPE_CHECKING:
    from tfdist.cluster import Cluster

# Seconds between two checks of the chief's port; and for which it may not answer, or refuse: its
# machine refuses as soon as its process has ended.
_POLL = 0.25
_AWAY = 10.0
_REFUSED = 1.0
# Seconds that the chief may take to start; it imports TensorFlow first.
_START = 300.0
# Seconds that a task serves after SIGTERM: the chief may have received one too, and saves then.
_LINGER = 4.0
# Seconds more than the chief has to name another task, for which it may be waiting.
_AFTER_CHIEF = 1.0


def serve(cluster: Cluster, *, start_timeout: float = _START) -> bool:
    """Serves until the chief is done, if this task is a ps or a worker of a cluster that has one.

    Args:
        cluster: The cluster of this task.
        start_timeout: The time to wait for the chief, in seconds.

    Returns:
        True if this task has served and the chief is done: return from `main` then.
        False, at once, in any other task.

    Raises:
        ConfigError: The cluster has ps tasks but no chief to serve, or TFDIST_STALL is malformed.
        PeerError: The chief did not come, ended without having finished, is stuck, or has lost
            another task.

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
    meet(cluster)
    HeartbeatWriter().write("serving")
    limit = stall_seconds()
    status = StatusFile()
    jobs = {job: list(hosts) for job, hosts in cluster.jobs.items() if job != "evaluator"}
    # Collective and session options stay at their defaults; the server ends with the process.
    server = tf.distribute.Server(
        tf.train.ClusterSpec(jobs), job_name=task.type, task_index=task.index, protocol="grpc"
    )
    close_to_others(cluster)
    # The server's own end would wait for a peer that is stuck.
    excepthook.install(connected=True)
    sigterm.end_on_it()
    sigterm.linger(_LINGER)
    try:
        _wait_for_chief(cluster, status, start_timeout, limit)
    finally:
        status.close()
        del server
    return True


def _wait_for_chief(
    cluster: Cluster, status: StatusFile, start_timeout: float, limit: float
) -> None:
    address = cluster.jobs["chief"][0]
    chief = f"chief/0 ({address})"
    progress = _ChiefProgress(start_timeout, limit)
    began = last_seen = time.monotonic()
    seen = False
    while True:
        kind, rest = status.read()
        if kind == DONE:
            return
        if kind == LOST:
            raise PeerError(f"{cluster.task}: the chief has ended: {rest}")
        now = time.monotonic()
        is_open, away = _listens(address)
        if not is_open:
            sigterm.release_after_it()
        if is_open:
            seen, last_seen = True, now
        elif seen and now - last_seen > away and status.read()[0] not in (DONE, LOST):
            raise PeerError(
                f"{cluster.task}: {chief} went away without having finished; see its "
                "output for the cause"
            )
        elif not seen and now - began > start_timeout:
            raise PeerError(
                f"{cluster.task}: {chief} did not come within {start_timeout:.0f} s; "
                "check that it runs and that its address is right"
            )
        problem = progress.problem(rest if kind == BEAT else "") if seen else ""
        if problem:
            raise lost(str(cluster.task), chief, problem)
        time.sleep(_POLL)


class _ChiefProgress:
    """The progress that the chief reports, and for how long there has been none.

    Args:
        start_timeout: Seconds until its first report.
        limit: Seconds that it may report nothing, or the same step.
    """

    def __init__(self, start_timeout: float, limit: float) -> None:
        self._start_timeout, self._limit = start_timeout, limit
        self._number = self._progress = ""
        self._silent = self._idle = 0.0
        self._clock = SuspendAwareClock()

    def problem(self, beat: str) -> str:
        """Returns how it shows that the chief is stuck; "" where it is not.

        Args:
            beat: Its latest report: a number, its phase, and its progress; or "".
        """
        passed = self._clock.passed()
        number, _, progress = beat.partition(" ")
        self._silent += passed
        self._idle += passed
        if number and number != self._number:
            self._number, self._silent = number, 0.0
        if progress and progress != self._progress:
            self._progress, self._idle = progress, 0.0
        if self._silent > (self._limit if self._number else max(self._limit, self._start_timeout)):
            return f"it is running but has not responded for {self._silent:.0f} s"
        phase, _, place = self._progress.partition(" ")
        if phase == "-" or self._idle <= patience(phase, self._limit) + _AFTER_CHIEF:
            return ""
        epoch, step, _ = place.split("/")
        where = f"{phase} in epoch {int(epoch) + 1} after step {step}"
        return f"no progress for {self._idle:.0f} s, {where}"


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
