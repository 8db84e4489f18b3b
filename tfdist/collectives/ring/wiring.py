"""Makes the ring of the workers of a `tf.distribute` strategy, over the strategy's collectives."""

from __future__ import annotations

import hmac
import secrets
import socket
from typing import Any

import tensorflow as tf

from tfdist.cluster.address import split_address
from tfdist.cluster.secret import job_secret
from tfdist.collectives.process_group import ProcessGroup
from tfdist.collectives.ring.connections import Connections, connect, listen
from tfdist.collectives.ring.ring import Ring
from tfdist.runtime import shutdown, wakeup
from tfdist.runtime.timeouts import stall_seconds

_SECRET_BYTES = 32

# The result for each strategy of this process: a ring is made once.
_made: dict[tf.distribute.Strategy, tuple[Ring | None, str]] = {}


def ring_of(strategy: tf.distribute.Strategy, group: ProcessGroup) -> tuple[Ring | None, str]:
    """Returns the ring of the strategy's workers, made at the first call.

    All workers must call it at the same point; either all of them get a ring or none does.

    Args:
        strategy: A strategy with several workers.
        group: Those workers.

    Returns:
        The ring and "", or None and the reason why there is none.

    Raises:
        ConfigError: TFDIST_RING_PORT or TFDIST_STALL is malformed.
    """
    if strategy not in _made:
        _made[strategy] = _make(strategy, group)
    return _made[strategy]


def neighbours(
    strategy: tf.distribute.Strategy, group: ProcessGroup
) -> tuple[Connections | None, str]:
    """Connects this worker with the next and the previous one; all workers call it together.

    Args:
        strategy: A strategy with several workers.
        group: Those workers.

    Returns:
        The connections and "", or None on all workers and the reason why there are none.

    Raises:
        ConfigError: TFDIST_RING_PORT is malformed.
    """
    rank, size = group.layout.worker, group.layout.workers
    hosts = _hosts(strategy, group)
    problem = ""
    listener: socket.socket | None = None
    try:
        listener = listen(hosts[rank], rank)
    except OSError as error:
        problem = f"no port to listen on: {error}"
    ports = group.exchange(0 if listener is None else listener.getsockname()[1])
    # Every worker draws a secret; the chief's is used.
    secret = group.broadcast(secrets.token_bytes(_SECRET_BYTES))
    # The broadcast crosses the network in the clear; the job's secret does not.
    secret = hmac.digest(job_secret() or b"-", secret, "sha256")
    connections: Connections | None = None
    following = (rank + 1) % size
    try:
        if listener is not None and all(ports):
            place = (hosts[following], ports[following])
            connections = connect(rank, size, listener, place, secret)
    except OSError as error:
        problem = str(error)
    finally:
        if listener is not None:
            listener.close()
    connected = group.exchange(int(connections is not None))
    if all(connected):
        return connections, ""
    for connection in connections or ():
        connection.close()
    failed = [name for name, done in zip(group.tasks, connected, strict=True) if not done]
    return None, f"{', '.join(failed)} could not connect" + (f" ({problem})" if problem else "")


def _make(strategy: tf.distribute.Strategy, group: ProcessGroup) -> tuple[Ring | None, str]:
    limit = stall_seconds()
    connections, problem = neighbours(strategy, group)
    if connections is None:
        return None, problem
    ring = Ring(
        group.layout.worker,
        group.layout.workers,
        connections,
        names=group.tasks,
        stall_seconds=limit,
    )
    wakeup.when_blocked(ring.interrupt)
    shutdown.at_exit("the ring of the workers", lambda: _leave(ring))
    return ring, ""


def _leave(ring: Ring) -> None:
    ring.close(failed="" if shutdown.ends_well() else "it failed")


def _hosts(strategy: Any, group: ProcessGroup) -> list[str]:
    jobs = strategy.cluster_resolver.cluster_spec().as_dict()
    named = [task.split("/") for task in group.tasks]
    return [split_address(jobs[job][int(index)])[0] for job, index in named]
