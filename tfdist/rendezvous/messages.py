"""Writes and reads the messages that tasks exchange while they meet: lines of JSON.

A message may come from anyone on the network, so reading checks every field
and limits every size, and rejects everything else. What a task says counts where
it is proven: by an HMAC, under the key that the tasks of a job have in common, of all
that is said and of both sides' challenges, which are drawn for one connection. The
caller says its name, the other one answers with its own and its proof, and the caller
says all once more with its proof.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import re
from dataclasses import dataclass

MAX_BYTES = 8192
_PREFIX = b"tfdist-meet/2 "
_PROOF = re.compile(r"[0-9a-f]{64}")
_CHALLENGE = re.compile(r"[0-9a-f]{32}")
NO_PROOF = "0" * 64
_NONCE = re.compile(r"[0-9a-f]{16}")
_TASK = re.compile(r"(chief|worker|ps|evaluator)/[0-9]{1,6}", re.ASCII)
_KINDS = ("hello", "ready")
_MAX_NOTES = 32


@dataclass(frozen=True)
class Hello:
    """The name of the sender, and the faults that it sees.

    Attributes:
        kind: "hello", or "ready" to ask the leader for the start.
        task: the sender, such as `worker/0`.
        nonce: distinguishes two processes that claim to be one task.
        challenge: what the other side's proof must cover.
        proof: that the sender has the key; `NO_PROOF` in a caller's first message.
        faults: pairs of kind of fault and task that the sender saw itself.
        missing: the tasks that it does not reach.
    """

    kind: str
    task: str
    nonce: str
    challenge: str
    proof: str = NO_PROOF
    faults: tuple[tuple[str, str], ...] = ()
    missing: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Returns the line to send."""
        fields = [
            self.kind,
            self.task,
            self.nonce,
            self.challenge,
            self.proof,
            self.faults[:_MAX_NOTES],
            self.missing[:_MAX_NOTES],
        ]
        return _PREFIX + json.dumps(fields).encode() + b"\n"

    def signed(self, key: bytes, side: str, other: str) -> Hello:
        """Returns the message with its proof.

        Args:
            key: the key of the tasks of one job.
            side: "caller" or "answerer", which of the two the sender is.
            other: the other side's challenge.
        """
        return dataclasses.replace(self, proof=self._proof(key, side, other))

    def is_proven(self, key: bytes, side: str, other: str) -> bool:
        """Returns whether the sender has the key; for the arguments see `signed`."""
        return hmac.compare_digest(self.proof, self._proof(key, side, other))

    def _proof(self, key: bytes, side: str, other: str) -> str:
        said = dataclasses.replace(self, proof=NO_PROOF).encode()
        return hmac.new(key, f"{side} {other} ".encode() + said, hashlib.sha256).hexdigest()


def decode(line: bytes, fault_kinds: tuple[str, ...]) -> Hello | None:
    """Returns the message in `line`, or None if it is not one."""
    if not line.startswith(_PREFIX) or not line.endswith(b"\n") or len(line) > MAX_BYTES:
        return None
    try:
        fields = json.loads(line[len(_PREFIX) :])
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, list) or len(fields) != 7:
        return None
    kind, task, nonce, challenge, proof, faults, missing = fields
    if kind not in _KINDS or not all(isinstance(x, str) for x in (task, nonce, challenge, proof)):
        return None
    if not (_TASK.fullmatch(task) and _NONCE.fullmatch(nonce)):
        return None
    if not (_CHALLENGE.fullmatch(challenge) and _PROOF.fullmatch(proof)):
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
    notes = tuple((k, t) for k, t in faults)
    return Hello(kind, task, nonce, challenge, proof, notes, tuple(missing))


def is_http2(data: bytes) -> bool:
    """Returns whether an HTTP/2 server sent this, such as TensorFlow's (gRPC).

    It begins with a SETTINGS frame on stream 0, whoever calls (RFC 9113, 3.4 and 6.5).
    """
    return len(data) >= 9 and data[3:9] == b"\x04\x00\x00\x00\x00\x00"
