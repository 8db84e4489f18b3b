"""The reason why a ring is broken, such as a lost worker; sent as a line of text."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Marks the text of a ring's error, which TensorFlow may wrap in one of its errors.
MARK = "tfdist ring: "
LOST = "lost"
MISMATCH = "mismatch"
EXITED = "exited"
INTERRUPTED = "interrupted"
DAMAGED = "damaged"
_KINDS = (LOST, MISMATCH, EXITED, INTERRUPTED, DAMAGED)

_LONGEST = 300
_LINE = re.compile(rb"failure (\w+) (\d{1,6}) ([ -~]*)")
_TEXT = re.compile(rf"{re.escape(MARK)}(\w+) (\S+) \(([^\n]*)\)")


class RingError(Exception):
    """The ring is broken: none of its collectives can be completed any more."""


@dataclass(frozen=True)
class RingFailure:
    """The reason why a ring is broken.

    Attributes:
        kind: `LOST` (a worker died or does not respond), `MISMATCH` (two workers made different
            calls), `EXITED` (a worker has finished while others have not), `INTERRUPTED` (by
            Ctrl-C) or `DAMAGED` (what a worker sent was changed on the way).
        rank: The worker that caused it.
        reason: A description in a few words.
    """

    kind: str
    rank: int
    reason: str

    def encode(self) -> bytes:
        """Returns the line to send to a neighbour, without its line end."""
        return f"failure {self.kind} {self.rank} {_plain(self.reason)}".encode()

    def error(self, name: str) -> RingError:
        """Returns the error to raise.

        Args:
            name: The name of the worker that caused it, as `worker/1`.
        """
        return RingError(f"{MARK}{self.kind} {name} ({_plain(self.reason)})")


def decode(line: bytes, size: int) -> RingFailure | None:
    """Reads a line of `RingFailure.encode`; None if it is malformed, or no worker has its rank.

    Args:
        line: The line, without its line end.
        size: The number of workers of the ring.
    """
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    kind, rank = found[1].decode(), int(found[2])
    if kind not in _KINDS or rank >= size:
        return None
    return RingFailure(kind, rank, found[3].decode())


def parse(text: str) -> tuple[str, str, str] | None:
    """Finds the text of a `RingError` within the text of another error.

    Returns:
        Kind, name of the worker and reason; None if the error is not the ring's.
    """
    found = _TEXT.search(text)
    return None if found is None else (found[1], found[2], found[3])


def _plain(text: str) -> str:
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:_LONGEST]
