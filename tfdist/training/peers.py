"""TensorFlow's many ways to say that a peer is gone, as one error that names it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from tfdist.errors import PeerError

_Method = TypeVar("_Method", bound=Callable[..., Any])

_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
_LOSSES = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)
_ABORTED = "Collective ops is aborted by"
# What TensorFlow adds around the cause.
_NOISE = re.compile(
    r"^(Graph execution error|Detected at node|File |Error reported from|Additional GRPC|The error "
    r"could be|\d+ root error|\[\[|Check the task logs)"
)


def lost_peer(error: BaseException, own: str) -> PeerError | None:
    """Returns the error that names the lost peer, None where `error` means something else.

    Args:
        error: What TensorFlow raised.
        own: This task, as `worker/0`.
    """
    if not isinstance(error, tf.errors.OpError):
        return None
    text = str(error.message)
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


def naming_lost_peers(method: _Method) -> _Method:
    """Makes a method of `Trainer` raise PeerError where a peer was lost."""

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except tf.errors.OpError as error:
            if not self.place.has_peers:
                raise
            lost = lost_peer(error, self.place.task)
            if lost is None:
                raise
            raise lost from error

    return wrapped  # type: ignore[return-value]
