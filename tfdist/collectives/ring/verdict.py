"""Why a ring is broken: who was lost, or what the workers do that does not go together."""

from __future__ import annotations

import re
from dataclasses import dataclass

# By this the text of an error is known for the ring's, also inside one of TensorFlow's.
MARK = "tfdist ring: "
LOST = "lost"
APART = "apart"
LEFT = "left"
INTERRUPTED = "interrupted"
_KINDS = (LOST, APART, LEFT, INTERRUPTED)

_LONGEST = 300
_LINE = re.compile(rb"verdict (\w+) (\d{1,6}) ([ -~]*)")
_TEXT = re.compile(rf"{re.escape(MARK)}(\w+) (\S+) \(([^\n]*)\)")


class RingError(Exception):
    """The ring is broken: none of its collectives can be completed any more."""


@dataclass(frozen=True)
class Verdict:
    """What broke a ring.

    Attributes:
        kind: `LOST` (a worker died or is silent), `APART` (two workers made different calls),
            `LEFT` (a worker came to its end, and others go on) or `INTERRUPTED` (by Ctrl-C).
        rank: The worker it began with.
        reason: What happened, in a few words.
    """

    kind: str
    rank: int
    reason: str

    def encode(self) -> bytes:
        """The line that tells a neighbour, without its end."""
        return f"verdict {self.kind} {self.rank} {_plain(self.reason)}".encode()

    def error(self, name: str) -> RingError:
        """The error to raise.

        Args:
            name: What the worker is called, as `worker/1`.
        """
        return RingError(f"{MARK}{self.kind} {name} ({_plain(self.reason)})")


def decode(line: bytes, size: int) -> Verdict | None:
    """Reads the line of `Verdict.encode`; None where it is none, or of no worker of the ring.

    Args:
        line: The line, without its end.
        size: How many workers the ring has.
    """
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    kind, rank = found[1].decode(), int(found[2])
    if kind not in _KINDS or rank >= size:
        return None
    return Verdict(kind, rank, found[3].decode())


def parse(text: str) -> tuple[str, str, str] | None:
    """Finds the text of a `RingError` in that of another error.

    Returns:
        Kind, name of the worker and reason; None where there is none.
    """
    found = _TEXT.search(text)
    return None if found is None else (found[1], found[2], found[3])


def _plain(text: str) -> str:
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:_LONGEST]
