"""Chooses the transport that carries tensors between replicas."""

from __future__ import annotations

import contextlib
import contextvars
import os
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.collectives.layout import on_cpus
from tfdist.collectives.process_group import ProcessGroup
from tfdist.collectives.ring.ring import Ring
from tfdist.collectives.ring.transport import RingTransport
from tfdist.collectives.ring.wiring import ring_of
from tfdist.collectives.tensorflow import TensorFlowTransport
from tfdist.collectives.transport import SingleReplica, Transport
from tfdist.collectives.transport_names import (
    AUTO,
    RING,
    TENSORFLOW,
    TRANSPORTS,
    VARIABLE,
    narrow_type,
)
from tfdist.errors import ConfigError
from tfdist.runtime.log import LOGGER
from tfdist.validation import one_of

_WHERE = "Trainer(transport)"
# Whether gradients have checksums: "on", "off", or "auto" for where that costs no time.
CHECKSUM_VARIABLE = "TFDIST_CHECKSUM"
_CHECKSUMS = (AUTO, "on", "off")
# Bytes a second from which moving them is work for the processor, and not waiting.
_FAST = 5e8
_TRIED_BYTES = 4 << 20
_speeds: weakref.WeakKeyDictionary[Ring, float] = weakref.WeakKeyDictionary()
_may_overlap = contextvars.ContextVar("may_overlap", default=True)


@contextlib.contextmanager
def sending_after_backward() -> Iterator[None]:
    """Makes `make_transport` return rings that send when the backward pass is over.

    Outside of it, a ring sends gradients during the backward pass if that saves time. The sums are
    the same: this is for measuring what that saves. All workers must enter it, or none.

    Example:
        >>> with sending_after_backward():
        ...     tfdist.Trainer(model).fit(data)
    """
    token = _may_overlap.set(False)
    try:
        yield
    finally:
        _may_overlap.reset(token)


def make_transport(
    strategy: tf.distribute.Strategy,
    group: ProcessGroup,
    wanted: str,
    *,
    wire_type: str = AUTO,
    bytes_per_pack: int = 0,
) -> Transport:
    """Makes the transport of a strategy's replicas.

    All workers must call it at the same point.

    Args:
        strategy: The strategy.
        group: The processes that train.
        wanted: One of `TRANSPORTS`. "auto" takes the value of TFDIST_TRANSPORT if that is set,
            else the ring where each worker has one replica on a CPU and all workers connect, else
            TensorFlow's own collectives.
        wire_type: One of `WIRE_TYPES`: the type in which float32 gradients are sent.
        bytes_per_pack: Bytes that TensorFlow sends at once; 0 leaves it to the strategy.

    Raises:
        ConfigError: The workers ask for different transports, or the ring cannot be used; or
            TFDIST_TRANSPORT or TFDIST_CHECKSUM is malformed.
    """
    where = _WHERE
    if wanted == AUTO and os.environ.get(VARIABLE):
        where, wanted = VARIABLE, os.environ[VARIABLE]
        one_of(where, wanted, TRANSPORTS)
    narrow = narrow_type(wire_type)
    replicas = group.layout.replicas
    if replicas == 1:
        return SingleReplica()
    _agree(where, wanted, group)
    workers = group.layout.workers
    reason = "asked for"
    if wanted in (AUTO, RING):
        reason = _why_not(strategy, group)
        if not reason:
            group.ring, reason = ring_of(strategy, group)
        if group.ring is not None:
            why = "asked for" if wanted == RING else f"{workers} workers, a CPU replica each"
            # If the ring or a narrow type is asked for by name, tensors are sent as between hosts.
            if wanted == AUTO and narrow is None and group.ring.share_memory():
                _log(group, f"{RING} ({why}, in one host's memory)")
                return RingTransport(group.ring, in_memory=True)
            checks = _checks_all(group.ring, group)
            group.ring.check_all(checks)
            _log(group, f"{RING} ({why}{', every message checked' if checks else ''})")
            overlaps = _may_overlap.get() and _waiting_is_idle(group.ring)
            return RingTransport(group.ring, wire_type=narrow, overlaps=overlaps)
        if wanted == RING:
            raise ConfigError(
                f"{where}: 'ring' is given, but {reason}; allowed: workers with one CPU replica "
                "each under MultiWorkerMirroredStrategy, whose hosts reach each other; use auto"
            )
    if workers > 1:
        _log(group, f"{TENSORFLOW} ({reason})")
    return TensorFlowTransport(
        replicas, wire_type=narrow, bytes_per_pack=bytes_per_pack, workers=workers
    )


def _waiting_is_idle(ring: Ring) -> bool:
    """Returns whether this worker could compute while its gradients are on the way.

    The sums are the same either way, so workers need not agree.
    """
    return _speed(ring) < _FAST or len(os.sched_getaffinity(0)) > 1


def _checks_all(ring: Ring, group: ProcessGroup) -> bool:
    """Returns whether the workers' large messages have checksums too; they all get the same answer.

    To compute them takes a third of the time that a worker needs to send as fast as it can, and
    none where it waits for the network.
    """
    wanted = os.environ.get(CHECKSUM_VARIABLE) or AUTO
    one_of(CHECKSUM_VARIABLE, wanted, _CHECKSUMS)
    free = int(_speed(ring) < _FAST)
    answers = group.exchange({AUTO: free, "on": 2, "off": 0}[wanted])
    return all(answers) or 2 in answers


def _speed(ring: Ring) -> float:
    """Returns a ring's bytes a second; all workers ask for the first time together."""
    if ring not in _speeds:
        _speeds[ring] = _bytes_per_second(ring)
    return _speeds[ring]


def _bytes_per_second(ring: Ring) -> float:
    """Measures how fast this worker sends and receives in a sum; all workers call it together."""
    array = np.zeros(_TRIED_BYTES, np.uint8)
    ring.all_reduce(array)  # The connections' windows grow.
    began = time.perf_counter()
    ring.all_reduce(array)
    sent = 2 * array.nbytes * (ring.size - 1) / ring.size
    return sent / max(time.perf_counter() - began, 1e-9)


def _agree(where: str, wanted: str, group: ProcessGroup) -> None:
    chosen = [TRANSPORTS[number] for number in group.exchange(TRANSPORTS.index(wanted))]
    if len(set(chosen)) > 1:
        asked = ", ".join(f"{task} {name}" for task, name in zip(group.tasks, chosen, strict=True))
        raise ConfigError(
            f"{where}: the workers ask for different transports ({asked}); give all workers the "
            "same"
        )


def _why_not(strategy: Any, group: ProcessGroup) -> str:
    """Returns the reason why the strategy's workers cannot use the ring; "" if they can."""
    layout = group.layout
    if layout.workers == 1:
        return "all replicas are in one process"
    # Workers may have different devices.
    if not all(group.exchange(int(on_cpus(strategy)))):
        return "replicas are on GPUs"
    return "" if layout.local_replicas == 1 else f"{layout.local_replicas} replicas a worker"


_logged: list[str] = []


def _log(group: ProcessGroup, text: str) -> None:
    """Logs the chosen transport, on the chief, once per process."""
    if group.is_chief and text not in _logged:
        _logged.append(text)
        LOGGER.info("transport %s", text)
