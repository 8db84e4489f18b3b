"""TensorFlow's many ways to say that a peer is gone, or elsewhere, as one error that says so."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from tfdist.errors import OutOfStepError, PeerError, TfdistError

_Method = TypeVar("_Method", bound=Callable[..., Any])

_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
_LOSSES = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)
_ABORTED = "Collective ops is aborted by"
# Two workers met at one collective with different tensors, as they are not at the same step.
_APART = re.compile(
    r"[Cc]ollective instance \d+ expected|Shape mismatch in the collective instance"
)
# What TensorFlow adds around the cause.
_NOISE = re.compile(
    r"^(Graph execution error|Detected at node|File |Error reported from|Additional GRPC|The error "
    r"could be|\d+ root error|\[\[|Check the task logs)"
)


def peers_error(error: BaseException, own: str) -> TfdistError | None:
    """Says in one line what is wrong with the peers, None where `error` means something else.

    Args:
        error: What TensorFlow raised.
        own: This task, as `worker/0`.

    Returns:
        A PeerError that names the lost one, or an OutOfStepError where the workers do not do
        the same.
    """
    if not isinstance(error, tf.errors.OpError):
        return None
    text = str(error.message)
    if _APART.search(text):
        return OutOfStepError(
            f"{own}: the workers do not make the same calls ({_reason(text)}); call fit, evaluate "
            "and predict on all of them, with the same arguments and data of the same shapes"
        )
    by_peer = _ABORTED in text and "root error(s)" not in text
    if not isinstance(error, _LOSSES) and not by_peer:
        return None
    names = dict.fromkeys(f"{job}/{index}" for job, index in _TASK.findall(text))
    peers = [name for name in names if name != own]
    # An unhealthy task is named behind that word; others may only have passed the news on.
    _, found, behind = text.partition("unhealthy")
    if found:
        sick = [f"{job}/{index}" for job, index in _TASK.findall(behind)]
        peers = [name for name in dict.fromkeys(sick) if name != own] or peers
    who = ", ".join(peers) or "a task of the cluster"
    return PeerError(
        f"{own}: lost {who} ({_reason(text)}); its own output says why, and starting the job again "
        "goes on from the last checkpoint, if it saves any"
    )


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


def naming_peers(method: _Method) -> _Method:
    """Makes a method of `Trainer` raise `peers_error` where TensorFlow complains of the peers."""

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except tf.errors.OpError as error:
            if not self.place.has_peers:
                raise
            found = peers_error(error, self.place.task)
            if found is None:
                raise
            raise found from error

    return wrapped  # type: ignore[return-value]
