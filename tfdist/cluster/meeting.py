"""Meeting the other tasks once in a process, whoever asks for it first."""

from __future__ import annotations

import math
import os

from tfdist.cluster.cluster import Cluster
from tfdist.cluster.messages import quote
from tfdist.cluster.rendezvous import DEFAULT_TIMEOUT, rendezvous
from tfdist.errors import ConfigError

_VARIABLE = "TFDIST_WAIT"
_met: set[tuple[str, str]] = set()


def meet(cluster: Cluster, timeout: float | None = None, *, job: str = "") -> None:
    """Meets all other tasks of the cluster, unless this process has met them already.

    Args:
        cluster: Who should come, and who we are.
        timeout: Seconds to wait, at most; `wait_seconds()` by default.
        job: Text that all tasks must share, such as a command's flags.

    Raises:
        PeerError: A task did not come, its name does not resolve, or a port is taken.
        ConfigError: A task has another cluster or job, or two are the same one.
    """
    key = (cluster.fingerprint(), str(cluster.task))
    if key in _met:
        return
    rendezvous(cluster, wait_seconds() if timeout is None else timeout, job=job)
    _met.add(key)


def wait_seconds() -> float:
    """How long to wait for other tasks: $TFDIST_WAIT, or 300 seconds.

    Raises:
        ConfigError: The variable is not a number of seconds.
    """
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return DEFAULT_TIMEOUT
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigError(f"{_VARIABLE}: {quote(text)} is not a number of seconds, 0 or more")
    return value
