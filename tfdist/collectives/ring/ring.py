"""Collectives of a ring of workers, on NumPy arrays.

Each worker sends to the next one only. An array is cut into as many segments as there are workers;
segment c belongs to worker c. To sum, segment c starts at worker c + 1, each worker adds its own,
and its owner adds last: the order of the additions is always

    ((x[c+1] + x[c+2]) + ... + x[c-1]) + x[c]

and does not depend on timing. Then the owners' sums go around. A chunk is passed on as soon as it
arrives, so all connections are busy at the same time, and it is added while it is in the
processor's cache. Small arrays are sent to every worker, which adds them up in the order of the
workers: half as many rounds. Workers of one host may have memory in common: then only the places of
the arrays are sent, each worker adds up its segment in the same order from the others' memory, and
copies theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the name of bfloat16)
import numpy as np

from tfdist.collectives.ring import rooted
from tfdist.collectives.ring.collective import (
    BROADCAST,
    GATHER,
    SCATTER,
    SUM,
    Collective,
    Collectives,
)
from tfdist.collectives.ring.connections import Connections
from tfdist.collectives.ring.failure import EXITED, LOST, RingFailure
from tfdist.collectives.ring.memory import NOWHERE, CommonMemory
from tfdist.collectives.ring.monitor import Neighbour, RingMonitor
from tfdist.collectives.ring.stream import (
    CHUNK_BYTES,
    Part,
    Stream,
    as_bytes,
    flat_view,
    in_chunks,
    room_for,
)
from tfdist.collectives.transport_names import narrow_type
from tfdist.runtime.timeouts import STALL_SECONDS

# The total size, in bytes of all workers, up to which every worker sends its array to all others.
SMALL_BYTES = 64 << 10
# Segments start at multiples of it: the size of a cache line, and TensorFlow's alignment.
ALIGNMENT = 64

WARN_SECONDS = 60.0

# What a worker sends to the others when it has done its part of a sum.
_DONE = b"\x01"


class Ring:
    """One worker's place in a ring.

    All workers enter the same collectives in the same order. Those of several threads wait for each
    other.

    Attributes:
        common: The memory that all workers have in common; None if they have none, or before
            `share_memory`.

    Args:
        rank: This worker, from 0.
        size: The number of workers.
        connections: To the neighbours; None where there is one worker only. The ring closes them.
        names: The names of the workers in errors, by rank.
        warn_seconds: The time in one collective after which a warning names the awaited worker.
        stall_seconds: The time after which a worker that runs but does not respond counts as lost.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        connections: Connections | None,
        *,
        names: Sequence[str] = (),
        warn_seconds: float = WARN_SECONDS,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self.rank, self.size = rank, size
        self.common: CommonMemory | None = None
        self._looked_for_common = False
        names = list(names) or [f"worker/{i}" for i in range(size)]
        self._scratch = np.empty(CHUNK_BYTES, np.uint8)
        self._travelling = np.empty(0, np.uint8)  # The values on the wire, if of another type.
        self._monitor: RingMonitor | None = None
        if connections is None:
            if size != 1:
                raise ValueError(f"{size} workers and no connections")
            return
        data = (connections.to_next, connections.from_previous)
        self._monitor = RingMonitor(
            rank,
            names,
            Neighbour((rank + 1) % size, connections.news_next),
            Neighbour((rank - 1) % size, connections.news_previous),
            data,
            warn_seconds=warn_seconds,
            stall_seconds=stall_seconds,
        )
        self._collectives = Collectives(rank, names, Stream(*data, self._monitor), self._monitor)

    def check_all(self, wanted: bool) -> None:
        """Sets whether large messages have checksums; all workers call it at the same point."""
        if self._monitor is not None:
            self._collectives.stream.checks_all = wanted

    def segment(self, count: int, itemsize: int, rank: int) -> slice:
        """Returns the slice of `count` elements of a worker; only the last ones may be shorter."""
        step = max(1, ALIGNMENT // itemsize)
        each = -(-count // (self.size * step)) * step
        return slice(min(count, rank * each), min(count, (rank + 1) * each))

    def all_reduce(
        self, array: np.ndarray, wire_type: Any = None, *, in_memory: bool = False
    ) -> None:
        """Sums arrays of all workers in place; the sums have the same bits on all of them.

        Args:
            array: Contiguous, of the same type and size on all workers.
            wire_type: float16 or bfloat16, to send float32 in. Each worker adds in float32
                and rounds what it passes on; the owner's sum is rounded once more, and that is
                what all keep.
            in_memory: Whether to sum in common memory, if all workers' arrays are there. The same
                on all workers.

        Raises:
            RingError: A worker was lost, or entered a different collective. The array is undefined
                then.
        """
        flat = flat_view(array)
        wire = _wire(flat, wire_type)
        if self.size == 1:
            return
        if flat.nbytes * self.size <= SMALL_BYTES:
            self._reduce_small(flat, wire)
            return
        with self._collectives.begin(SUM, flat, wire) as call:
            if in_memory and wire is None and self.common is not None:
                places = call.exchange(self.common.place(flat), self.rank, self.size)
                if NOWHERE not in places:
                    self._sum_in_common(flat, places, call)
                    return
            # The second half begins when its first part is asked for: the first is over then.
            call.run(chain(self._summing(flat, wire, call), self._spreading(flat, wire, call)))

    def share_memory(self) -> bool:
        """Finds out, at the first call, whether the workers can have memory in common.

        All workers must call it at the same point; they get the same answer.
        """
        if not self._looked_for_common:
            self._looked_for_common = True
            common = CommonMemory()
            if self.size > 1 and common.reaches_all(self.all_gather):
                self.common = common
        return self.common is not None

    def reduce_scatter(self, array: np.ndarray) -> np.ndarray:
        """Sums arrays of all workers; each gets its segment.

        Args:
            array: Contiguous, of the same type and size on all workers. It is written to.

        Returns:
            The part of the array that `segment` returns, which holds the sums.

        Raises:
            RingError: As for `all_reduce`.
        """
        flat = flat_view(array)
        own = self.segment(flat.size, flat.itemsize, self.rank)
        if self.size > 1:
            with self._collectives.begin(SCATTER, flat, None) as call:
                call.run(self._summing(flat, None, call))
        return flat[own]

    def all_gather(self, array: np.ndarray) -> list[np.ndarray]:
        """Gathers the arrays of all workers, of one type and any lengths, on every worker.

        Args:
            array: This worker's, of one dimension.

        Returns:
            The arrays by rank; this worker's is the one given.

        Raises:
            RingError: As for `all_reduce`.
        """
        flat = flat_view(array)
        found = [flat] * self.size
        if self.size == 1:
            return found
        with self._collectives.begin(GATHER, flat, None) as call:
            call.send(as_bytes(flat))
            for hop in range(1, self.size):
                count, header = call.read_header(any_count=True)
                piece = np.empty(count, flat.dtype)
                found[(self.rank - hop) % self.size] = piece
                passes_on = hop < self.size - 1
                if passes_on:
                    call.send(header)
                call.run(in_chunks(piece, call.send if passes_on else None), finish=not passes_on)
        return found

    def broadcast(self, array: np.ndarray, root: int = 0) -> None:
        """Overwrites the array with that of one worker, of the same type and size.

        Raises:
            RingError: As for `all_reduce`.
        """
        flat = flat_view(array)
        if self.size == 1:
            return
        sends = self.rank != (root - 1) % self.size
        with self._collectives.begin(BROADCAST, flat, None, sends=sends) as call:
            if self.rank == root:
                call.send(as_bytes(flat))
                call.run([])
                return
            call.read_header()
            passes_on = (self.rank + 1) % self.size != root
            call.run(in_chunks(flat, call.send if passes_on else None))

    def gather(self, array: np.ndarray, root: int = 0) -> list[np.ndarray]:
        """Gathers the arrays of all workers, of one type and size, on one worker.

        Args:
            array: This worker's, of one dimension.
            root: The worker that gets them.

        Returns:
            The arrays by rank; nothing on the other workers.

        Raises:
            RingError: As for `all_reduce`.
        """
        flat = flat_view(array)
        if self.size == 1:
            return [flat]
        return rooted.gather(self._collectives, self.rank, self.size, flat, root)

    def scatter(self, piece: np.ndarray, whole: np.ndarray | None, root: int = 0) -> None:
        """Divides an array of one worker among all.

        Args:
            piece: Overwritten with this worker's part; of the same type and size on all workers.
            whole: On `root`, the parts by rank, one after another; None elsewhere.
            root: The worker that has them.

        Raises:
            RingError: As for `all_reduce`.
        """
        if self.size > 1:
            parts = None if whole is None else flat_view(whole)
            rooted.scatter(self._collectives, self.rank, self.size, flat_view(piece), parts, root)
        elif whole is not None:
            np.copyto(flat_view(piece), flat_view(whole))

    def interrupt(self) -> None:
        """Ends the collective that runs, if any, because of a signal; for any thread."""
        if self._monitor is not None:
            self._monitor.interrupt()

    def abort(self, reason: str) -> None:
        """Breaks the ring after a failure of this worker: the others' collectives raise at once."""
        if self._monitor is not None:
            self._monitor.break_off(RingFailure(LOST, self.rank, reason))

    def close(self, *, failed: str = "") -> None:
        """Leaves the ring.

        Args:
            failed: The reason why this worker has failed; "" if it has finished.
        """
        if self._monitor is not None:
            kind = LOST if failed else EXITED
            self._monitor.close(
                RingFailure(kind, self.rank, failed or "it has finished, while others continue")
            )

    def _reduce_small(self, flat: np.ndarray, wire: Any) -> None:
        """Sums small arrays: every worker receives all of them and adds them up itself."""
        with self._collectives.begin(SUM, flat, wire) as call:
            own = flat if wire is None else flat.astype(wire)
            parts = call.exchange(own.tobytes(), self.rank, self.size)
            total = np.frombuffer(parts[0], own.dtype).astype(flat.dtype)
            for rank in range(1, self.size):
                np.add(total, np.frombuffer(parts[rank], own.dtype), out=total)
            flat[:] = total if wire is None else total.astype(wire)

    def _sum_in_common(self, flat: np.ndarray, places: list[bytes], call: Collective) -> None:
        """Sums arrays in the memory of all workers; see the module's text for the order."""
        common = self.common
        assert common is not None
        arrays = [
            flat if rank == self.rank else common.view(rank, place, flat)
            for rank, place in enumerate(places)
        ]
        per_chunk = CHUNK_BYTES // flat.itemsize
        behind = [arrays[(self.rank + hop) % self.size] for hop in range(1, self.size)]
        for at in self._chunks(flat, self.rank, per_chunk):
            partial = behind[0][at]
            for other in behind[1:]:
                room = self._scratch.view(flat.dtype)[: len(partial)]
                partial = np.add(other[at], partial, out=room)
            np.add(flat[at], partial, out=flat[at])
        call.exchange(_DONE, self.rank, self.size)
        for hop in range(1, self.size):
            rank = (self.rank - hop) % self.size
            at = self.segment(flat.size, flat.itemsize, rank)
            np.copyto(flat[at], arrays[rank][at])
        # Nobody writes to its memory again before all have read it.
        call.exchange(_DONE, self.rank, self.size)

    def _summing(self, flat: np.ndarray, wire: Any, call: Collective) -> Iterator[Part]:
        """Returns the parts of the reduce-scatter: segments are summed on the way to owners.

        Args:
            flat: The array.
            wire: The type on the wire, or None.
            call: The collective.
        """
        self._travelling = room_for(self._travelling, 0 if wire is None else 2 * flat.size)
        moved = flat if wire is None else self._travelling[: 2 * flat.size].view(wire)
        per_chunk = CHUNK_BYTES // flat.itemsize
        scratch = self._scratch.view(moved.dtype)

        def pass_on(at: slice) -> None:
            if wire is not None:
                np.copyto(moved[at], flat[at], casting="unsafe")
            call.send(as_bytes(moved[at]))

        def added(at: slice, piece: np.ndarray, last: bool) -> Callable[[], None]:
            def add() -> None:
                np.add(flat[at], piece, out=flat[at])
                if not last:
                    pass_on(at)

            return add

        def parts() -> Iterator[Part]:
            for hop in range(1, self.size):
                for at in self._chunks(flat, (self.rank - 1 - hop) % self.size, per_chunk):
                    piece = scratch[: at.stop - at.start]
                    yield as_bytes(piece), added(at, piece, hop == self.size - 1)

        for at in self._chunks(flat, (self.rank - 1) % self.size, per_chunk):
            pass_on(at)
        if not call.greeted:
            call.read_header()
        return parts()

    def _spreading(self, flat: np.ndarray, wire: Any, call: Collective) -> Iterator[Part]:
        """Yields the parts of the all-gather: the owners' sums go around the ring."""
        moved = flat if wire is None else self._travelling[: 2 * flat.size].view(wire)
        per_chunk = CHUNK_BYTES // flat.itemsize

        def arrived(at: slice, last: bool) -> Callable[[], None]:
            def take() -> None:
                if not last:
                    call.send(as_bytes(moved[at]))
                if wire is not None:
                    np.copyto(flat[at], moved[at])

            return take

        for at in self._chunks(flat, self.rank, per_chunk):
            if wire is not None:
                np.copyto(moved[at], flat[at], casting="unsafe")
                np.copyto(flat[at], moved[at])
            call.send(as_bytes(moved[at]))
        for hop in range(1, self.size):
            for at in self._chunks(flat, (self.rank - hop) % self.size, per_chunk):
                yield as_bytes(moved[at]), arrived(at, hop == self.size - 1)

    def _chunks(self, flat: np.ndarray, rank: int, per_chunk: int) -> Iterator[slice]:
        whole = self.segment(flat.size, flat.itemsize, rank)
        for start in range(whole.start, whole.stop, per_chunk):
            yield slice(start, min(start + per_chunk, whole.stop))


def _wire(flat: np.ndarray, wire_type: Any) -> np.dtype[Any] | None:
    if wire_type is None or np.dtype(wire_type) == flat.dtype:
        return None
    wire = np.dtype(wire_type)
    if narrow_type(wire.name) is None or flat.dtype != np.float32:
        raise ValueError(f"{flat.dtype} cannot travel as {wire}; allowed: float32 as a 16-bit type")
    return wire
