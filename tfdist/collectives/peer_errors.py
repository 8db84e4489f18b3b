"""Converts TensorFlow's errors about lost or diverged peers into tfdist's."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from tfdist.collectives.ring import failure
from tfdist.collectives.ring.failure import RingError
from tfdist.errors import OutOfStepError, PeerError, TfdistError

_Method = TypeVar("_Method", bound=Callable[..., Any])

_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
# TensorFlow's text for a failed call to a ps.
_FROM_PS = re.compile(r"remote target /job:ps/replica:0/task:(\d+)")
_LOSSES = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)
_ABORTED = "Collective ops is aborted by"
# The error of a restarted task, which does not have the tensors of its predecessor.
_FORGOTTEN = "Unable to find the relevant tensor remote_handle"
# Two workers entered one collective with different tensors, as they are not at the same step.
_APART = re.compile(
    r"[Cc]ollective instance \d+ expected|Shape mismatch in the collective instance"
)
# Lines that TensorFlow adds around the cause.
_NOISE = re.compile(
    r"^(Graph execution error|Detected at node|File |Error reported from|Additional GRPC|The error "
    r"could be|\d+ root error|\[\[|Check the task logs)"
)


def is_loss(error: BaseException) -> bool:
    """Returns whether an error of TensorFlow is about a lost task, not about a computation."""
    if not isinstance(error, tf.errors.OpError):
        return False
    text = str(error.message)
    by_peer = _ABORTED in text and "root error(s)" not in text
    return isinstance(error, _LOSSES) or by_peer or _FORGOTTEN in text


def lost_ps(error: BaseException) -> list[str]:
    """Returns the ps tasks that did not answer, as an error of TensorFlow names them."""
    return sorted({f"ps/{index}" for index in _FROM_PS.findall(str(error))})


def peers_error(error: BaseException, own: str) -> TfdistError | None:
    """Converts an error of TensorFlow about peers into one of tfdist.

    Args:
        error: An error of TensorFlow or of the ring.
        own: This task, as `worker/0`.

    Returns:
        A PeerError that names the lost task, an OutOfStepError if the workers made different
        calls, or None if the error is about something else.
    """
    if isinstance(error, RingError):
        return _ring_error(str(error), own)
    if not isinstance(error, tf.errors.OpError):
        return None
    text = str(error.message)
    if failure.MARK in text:
        return _ring_error(text, own)
    if _APART.search(text):
        return out_of_step(own, _reason(text))
    if not is_loss(error):
        return None
    servers = lost_ps(error)
    if servers:
        return PeerError(
            f"{own}: {', '.join(servers)} was lost, with its part of the weights; start the job "
            "again to continue from the last checkpoint"
        )
    names = dict.fromkeys(f"{job}/{index}" for job, index in _TASK.findall(text))
    peers = [name for name in names if name != own]
    # Unhealthy tasks are named after that word; others may only have forwarded the report.
    _, found, behind = text.partition("unhealthy")
    if found:
        sick = [f"{job}/{index}" for job, index in _TASK.findall(behind)]
        peers = [name for name in dict.fromkeys(sick) if name != own] or peers
    return lost(own, ", ".join(peers) or "a task of the cluster", _reason(text))


def _ring_error(text: str, own: str) -> TfdistError | None:
    """Converts an error of the workers' ring into one of tfdist."""
    found = failure.parse(text)
    if found is None:
        return None
    kind, name, reason = found
    if kind == failure.MISMATCH:
        return out_of_step(own, reason)
    if kind == failure.EXITED:
        return out_of_step(own, f"{name}: {reason}")
    if kind == failure.DAMAGED:
        return PeerError(
            f"{own}: {reason}, and nothing of it was used; a network card, a switch or memory "
            "between the two is broken; start the job again to continue from the last checkpoint, "
            "if it saves any"
        )
    if name != own:
        return lost(own, name, reason)
    if kind == failure.INTERRUPTED:
        return None  # The main thread is about to raise KeyboardInterrupt itself.
    return PeerError(
        f"{own}: has left the other workers ({reason}); start the job again to continue from "
        "the last checkpoint, if it saves any"
    )


def lost(own: str, who: str, reason: str) -> PeerError:
    """Returns the error for a task that has ended, or is stuck.

    Args:
        own: This task, as `worker/0`.
        who: The lost one.
        reason: What shows that, in a few words.
    """
    return PeerError(
        f"{own}: lost {who} ({reason}); its own output shows why; start the job again to "
        "continue from the last checkpoint, if it saves any"
    )


def out_of_step(own: str, reason: str) -> OutOfStepError:
    """Returns the error for workers that make different calls.

    Args:
        own: This task, as `worker/0`.
        reason: The calls of each, in a few words.
    """
    return OutOfStepError(
        f"{own}: the workers do not make the same calls ({reason}); call fit, evaluate "
        "and predict on all of them, with the same arguments and data of the same shapes"
    )


def naming_peers(method: _Method) -> _Method:
    """Makes a method raise `peers_error` where TensorFlow raises an error about the peers.

    Args:
        method: A method of an object whose `_group` is its `ProcessGroup`.
    """

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except (tf.errors.OpError, RingError) as error:
            group = self._group
            found = peers_error(error, group.task) if group.has_peers else None
            if found is None:
                if group.ring is not None:
                    # As TensorFlow's own collectives do; otherwise the peers would wait forever.
                    group.ring.abort(_reason(str(error)))
                raise
            raise found from error
        except RuntimeError as error:
            # Ctrl-C broke the ring, and TensorFlow wrapped the KeyboardInterrupt.
            if "REPLACED BY KeyboardInterrupt" in str(error):
                raise KeyboardInterrupt from None
            raise

    return wrapped  # type: ignore[return-value]


def _reason(text: str) -> str:
    if "stopped sending heartbeats" in text:
        return "it stopped sending heartbeats"
    if _ABORTED in text:
        text = text.partition(_ABORTED)[2].lstrip(": ")
    for line in text.splitlines():
        line = line.strip()
        if line and not _NOISE.match(line):
            return line[:120].rstrip(" .:")
    return "no reason is given"
