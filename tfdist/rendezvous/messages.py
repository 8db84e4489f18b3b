"""Writes and reads the messages that tasks exchange while they meet: lines of JSON.

A message may come from anyone on the network, so reading checks every field
and limits every size, and rejects everything else.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

MAX_BYTES = 8192
_PREFIX = b"tfdist-meet/1 "
_HASH = re.compile(r"[0-9a-f]{64}")
_NONCE = re.compile(r"[0-9a-f]{16}")
_TASK = re.compile(r"(chief|worker|ps|evaluator)/[0-9]{1,6}", re.ASCII)
_KINDS = ("hello", "ready")
_MAX_NOTES = 32


@dataclass(frozen=True)
class Hello:
    """The name of the sender, and the faults that it sees.

    Attributes:
        kind: "hello", or "ready" to ask the leader for the start.
        hash: of the cluster and the job.
        task: the sender, such as `worker/0`.
        nonce: distinguishes two processes that claim to be one task.
        faults: pairs of kind of fault and task that the sender saw itself.
        missing: the tasks that it does not reach.
    """

    kind: str
    hash: str
    task: str
    nonce: str
    faults: tuple[tuple[str, str], ...] = ()
    missing: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Returns the line to send."""
        fields = [
            self.kind,
            self.hash,
            self.task,
            self.nonce,
            self.faults[:_MAX_NOTES],
            self.missing[:_MAX_NOTES],
        ]
        return _PREFIX + json.dumps(fields).encode() + b"\n"


def decode(line: bytes, fault_kinds: tuple[str, ...]) -> Hello | None:
    """Returns the message in `line`, or None if it is not one."""
    if not line.startswith(_PREFIX) or not line.endswith(b"\n") or len(line) > MAX_BYTES:
        return None
    try:
        fields = json.loads(line[len(_PREFIX) :])
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, list) or len(fields) != 6:
        return None
    kind, digest, task, nonce, faults, missing = fields
    if kind not in _KINDS or not all(isinstance(x, str) for x in (digest, task, nonce)):
        return None
    if not (_HASH.fullmatch(digest) and _TASK.fullmatch(task) and _NONCE.fullmatch(nonce)):
        return None
    if not isinstance(faults, list) or not isinstance(missing, list):
        return None
    if len(faults) > _MAX_NOTES or len(missing) > _MAX_NOTES:
        return None
    for fault in faults:
        if not isinstance(fault, list) or len(fault) != 2 or fault[0] not in fault_kinds:
            return None
        if not isinstance(fault[1], str) or not _TASK.fullmatch(fault[1]):
            return None
    if not all(isinstance(name, str) and _TASK.fullmatch(name) for name in missing):
        return None
    return Hello(kind, digest, task, nonce, tuple((k, t) for k, t in faults), tuple(missing))


def is_http2(data: bytes) -> bool:
    """Returns whether an HTTP/2 server sent this, such as TensorFlow's (gRPC).

    It begins with a SETTINGS frame on stream 0, whoever calls (RFC 9113, 3.4 and 6.5).
    """
    return len(data) >= 9 and data[3:9] == b"\x04\x00\x00\x00\x00\x00"
