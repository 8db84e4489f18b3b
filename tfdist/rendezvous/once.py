"""Meets the other tasks once per process, at the first call."""

from __future__ import annotations

from tfdist.cluster.cluster import Cluster
from tfdist.rendezvous.meeting import rendezvous
from tfdist.runtime.heartbeat import HeartbeatWriter
from tfdist.runtime.timeouts import wait_seconds

_met: set[tuple[str, str]] = set()


def meet(cluster: Cluster, timeout: float | None = None, *, job: str = "") -> None:
    """Meets all other tasks of the cluster, unless this process has met them already.

    Args:
        cluster: The expected tasks, and this one.
        timeout: Seconds to wait, at most; `wait_seconds()` by default.
        job: Text that all tasks must share, such as a command's flags.

    Raises:
        PeerError: A task did not come, its name does not resolve, or a port is taken.
        ConfigError: A task has another cluster or job, or two processes are the same task.
    """
    key = (cluster.fingerprint(), str(cluster.task))
    if key in _met:
        return
    # The meeting has its own deadline, which may be later than a stall's.
    heartbeat = HeartbeatWriter()
    heartbeat.write("meeting")
    rendezvous(cluster, wait_seconds() if timeout is None else timeout, job=job)
    heartbeat.write("building")
    _met.add(key)
