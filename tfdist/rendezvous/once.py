"""Meets the other tasks once per process, at the first call."""

from __future__ import annotations

import os

from tfdist.cluster.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.rendezvous.meeting import DEFAULT_TIMEOUT, rendezvous
from tfdist.runtime.heartbeat import Heart
from tfdist.validation import seconds

_VARIABLE = "TFDIST_WAIT"
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
    # The meeting has a deadline of its own, which may be later than a stall's.
    heart = Heart()
    heart.write("meeting")
    rendezvous(cluster, wait_seconds() if timeout is None else timeout, job=job)
    heart.write("building")
    _met.add(key)


def wait_seconds() -> float:
    """Returns the seconds to wait for other tasks: $TFDIST_WAIT, or 300.

    Raises:
        ConfigError: The variable is not a number of seconds.
    """
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return DEFAULT_TIMEOUT
    try:
        return seconds(text)
    except ConfigError as error:
        raise ConfigError(f"{_VARIABLE}: {error}") from None
