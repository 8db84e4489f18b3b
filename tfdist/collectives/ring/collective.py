"""Runs the collectives of a ring one at a time, and checks that all workers enter the same ones.

Every message begins with a header that identifies its collective, so that a worker that entered a
different one is detected before its data is used.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tfdist.collectives.ring.failure import LOST, MISMATCH, RingError, RingFailure
from tfdist.collectives.ring.monitor import RingMonitor
from tfdist.collectives.ring.stream import CHUNK_BYTES, Part, Stream

# Number of the collective, kind, type of the array, type on the wire, elements.
HEADER = struct.Struct("<IBBHQ")
SUM, SCATTER, GATHER, BROADCAST, GATHER_ON_ONE, SCATTER_FROM_ONE = range(1, 7)
_VERBS = {
    SUM: "sums",
    SCATTER: "sums parts of",
    GATHER: "gathers",
    BROADCAST: "broadcasts",
    GATHER_ON_ONE: "gathers on one worker",
    SCATTER_FROM_ONE: "scatters",
}
_TYPES = (
    *("", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


class Collectives:
    """The collectives of one worker; one begins when the one before it has ended.

    Args:
        rank: This worker.
        names: The names of the workers, by rank.
        stream: The connections for data.
        monitor: Knows whether the ring is broken, and why.
    """

    def __init__(
        self, rank: int, names: Sequence[str], stream: Stream, monitor: RingMonitor
    ) -> None:
        self._rank, self._names = rank, names
        self.stream, self._monitor = stream, monitor
        self._lock = threading.Lock()
        self._number = 0

    @contextlib.contextmanager
    def begin(
        self, kind: int, array: np.ndarray, wire: np.dtype[Any] | None, *, sends: bool = True
    ) -> Iterator[Collective]:
        """Begins a collective, which has the connections to itself within the block.

        Args:
            kind: One of the kinds above, such as `SUM`.
            array: The array to send or receive.
            wire: The type on the wire; None for the array's own.
            sends: Whether this worker sends anything.

        Raises:
            RingError: The ring is broken.
        """
        # A sum that overflows is infinite, as everywhere in training: no warning.
        with self._lock, np.errstate(over="ignore", invalid="ignore"):
            monitor = self._monitor
            if monitor.failure is not None or monitor.closed:
                raise monitor.error()
            monitor.number = self._number = (self._number + 1) & 0xFFFFFFFF
            monitor.since = time.monotonic()
            try:
                what = (kind, _type_number(array.dtype), _type_number(wire), array.size)
                yield Collective(self.stream, (self._number, *what), self._mismatch, sends)
            except RingError:
                raise
            except BaseException as error:
                # The connections are in the middle of a message, so nothing else can be sent.
                reason = f"{type(error).__name__}: {error}"
                monitor.break_off(RingFailure(LOST, self._rank, reason))
                raise
            finally:
                monitor.since = None

    def _mismatch(self, theirs: Sequence[int], own: Sequence[int]) -> RingError:
        """Breaks the ring as the previous worker entered a different one; returns the error."""
        previous = (self._rank - 1) % len(self._names)
        reason = (
            f"{self._names[previous]} {_describe(theirs)}, "
            f"and {self._names[self._rank]} {_describe(own)}"
        )
        self._monitor.break_off(RingFailure(MISMATCH, previous, reason))
        return self._monitor.error()


class Collective:
    """Sends and receives the messages of one collective.

    Attributes:
        greeted: Whether the previous worker's header has come.
    """

    def __init__(self, stream: Stream, what: tuple[int, ...], mismatch: Any, sends: bool) -> None:
        self._stream, self._what, self._mismatch = stream, what, mismatch
        self.greeted = False
        self._outgoing = deque([memoryview(HEADER.pack(*what))] if sends else [])

    def send(self, data: memoryview) -> None:
        """Appends data to the outgoing messages, in chunks as `in_chunks` receives them."""
        for start in range(0, len(data), CHUNK_BYTES):
            self._outgoing.append(data[start : start + CHUNK_BYTES])

    def run(self, incoming: Iterable[Part], *, finish: bool = True) -> None:
        """Receives the incoming parts while sending; see `Stream.run`."""
        self._stream.run(self._outgoing, iter(incoming), finish=finish)

    def exchange(self, token: bytes, rank: int, size: int) -> list[bytes]:
        """Sends a few bytes to all workers; returns theirs, by rank.

        Args:
            token: The bytes, as many on every worker.
            rank: This worker.
            size: The number of workers.
        """
        tokens = {rank: token}
        self.send(memoryview(token))
        if not self.greeted:
            self.read_header()
        for hop in range(1, size):
            message = memoryview(bytearray(len(token)))
            self.run([(message, None)], finish=False)
            if hop < size - 1:
                self.send(message)
            tokens[(rank - hop) % size] = bytes(message)
        self.run([])
        return [tokens[each] for each in range(size)]

    def read_header(self, *, any_count: bool = False) -> tuple[int, memoryview]:
        """Receives the header of the previous worker's messages.

        Args:
            any_count: Whether its number of elements may differ from this worker's.

        Returns:
            The number of elements that follow it, and the header.

        Raises:
            RingError: It is of a different collective.
        """
        header = memoryview(bytearray(HEADER.size))
        self.run([(header, None)], finish=False)
        self.greeted = True
        theirs = HEADER.unpack(header)
        compared = len(theirs) - any_count
        if theirs[:compared] != self._what[:compared]:
            raise self._mismatch(theirs, self._what)
        return int(theirs[-1]), header


def _describe(what: Sequence[int]) -> str:
    number, kind, dtype, wire, count = what
    name = _TYPES[dtype] if 0 < dtype < len(_TYPES) else "values"
    over = f" as {_TYPES[wire]}" if 0 < wire < len(_TYPES) else ""
    return f"{_VERBS.get(kind, 'exchanges')} {count} {name}{over} in collective {number}"


def _type_number(dtype: np.dtype[Any] | None) -> int:
    return _TYPES.index(dtype.name) if dtype is not None and dtype.name in _TYPES else 0
