"""One worker of the benchmark: goes through all cells and sizes together with the others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tfdist.benchmark.collectives.cells import MEMORY, RAW, SOCKET, Cell, Row
from tfdist.benchmark.collectives.exercise import (
    Exercise,
    of_ring,
    of_socket,
    of_tensorflow,
    uses_tensorflow,
)
from tfdist.benchmark.collectives.sockets import RawSocket
from tfdist.cluster import Cluster
from tfdist.collectives.peer_errors import peers_error
from tfdist.collectives.process_group import ProcessGroup
from tfdist.collectives.ring.failure import RingError
from tfdist.collectives.ring.wiring import neighbours, ring_of
from tfdist.errors import ConfigError, PeerError, TfdistError
from tfdist.strategy.build import build_strategy

_LEAST_CALLS, _MOST_CALLS = 3, 50
# A call that takes longer, in seconds, is not warmed up twice and is repeated less often.
_SLOW = 1.0
_LEAST_SLOW_CALLS = 2
_NUMBER_BYTES = 24  # Of a time as text, with its separator.


class Worker:
    """This worker, connected to the others in all the ways that are measured.

    Args:
        cluster: The workers' cluster; at least two tasks, and no ps.

    Raises:
        ConfigError: The cluster has ps tasks, or its workers cannot connect to each other.
        PeerError: Another worker did not come in time.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._strategy = build_strategy("multi_worker_mirrored", cluster)
        self.group = ProcessGroup(self._strategy)
        self.group.ring, problem = ring_of(self._strategy, self.group)
        connections, more = neighbours(self._strategy, self.group)
        if self.group.ring is None or connections is None:
            raise ConfigError(f"bench collectives: {problem or more}; let them reach each other")
        self._ring = self.group.ring
        self._raw = RawSocket(connections.to_next, connections.from_previous)
        connections.news_next.close()
        connections.news_previous.close()

    def measure(self, cells: Sequence[Cell], sizes: Sequence[int], seconds: float) -> Iterator[Row]:
        """Measures each size of a raw socket, then each size of each cell.

        All workers call it with the same arguments; each gets the same rows.

        Args:
            cells: What is measured.
            sizes: Bytes of the arrays, about.
            seconds: How long the calls of a row are repeated, about.

        Raises:
            PeerError: A worker was lost.
            TfdistError: A result was wrong.
        """
        if any(cell.transport == MEMORY for cell in cells) and not self._ring.share_memory():
            cells = [cell for cell in cells if cell.transport != MEMORY]
        for size in sizes:
            for cell in (RAW, *cells):
                try:
                    yield self._row(cell, self._exercise(cell, size), seconds)
                except (tf.errors.OpError, RingError, OSError) as error:
                    found = peers_error(error, self.group.task)
                    if found is None and isinstance(error, OSError):
                        found = self._lost_by_socket()
                    if found is None:
                        raise
                    raise found from error

    def _exercise(self, cell: Cell, size: int) -> Exercise:
        layout = self.group.layout
        if cell.transport == SOCKET:
            return of_socket(self._raw, layout.worker, layout.workers, size)
        if uses_tensorflow(cell):
            return of_tensorflow(self._strategy, layout.worker, cell, size)
        return of_ring(self._ring, cell, size)

    def _row(self, cell: Cell, exercise: Exercise, seconds: float) -> Row:
        first = self._call(cell, exercise)
        # The chief decides, as each worker has measured a different time.
        is_slow = bool(self.group.exchange(first > _SLOW)[0])
        warm = first if is_slow else self._call(cell, exercise)
        least = _LEAST_SLOW_CALLS if is_slow else _LEAST_CALLS
        wanted = round(seconds / max(warm, 1e-9))
        calls = self.group.exchange(max(least, min(_MOST_CALLS, wanted)))[0]
        times = [self._call(cell, exercise) for _ in range(calls)]
        all_times = self.group.gather(json.dumps(times).encode(), _NUMBER_BYTES * (calls + 1))
        slowest = np.max([json.loads(data) for data in all_times], axis=0)
        return Row(
            cell,
            exercise.size,
            float(np.median(slowest)),
            float(slowest.min()),
            calls,
            self.group.layout.workers,
        )

    def _call(self, cell: Cell, exercise: Exercise) -> float:
        """Makes one call, behind a barrier; returns its seconds.

        Raises:
            TfdistError: Its result is wrong.
        """
        exercise.fill()
        self.group.exchange(0)
        began = time.perf_counter()
        found = exercise.call()
        taken = time.perf_counter() - began
        if not exercise.is_right(found):
            raise TfdistError(
                f"bench collectives: {self.group.task}: the result of {cell} at {exercise.size:,} "
                "bytes is wrong"
            )
        return taken

    def _lost_by_socket(self) -> PeerError:
        """Returns the error for a raw socket that broke; the ring knows which worker was lost."""
        try:
            self.group.exchange(0)
        except RingError as error:
            found = peers_error(error, self.group.task)
            if isinstance(found, PeerError):
                return found
        return PeerError(f"{self.group.task}: a neighbour's raw socket broke; start it again")


def measure(
    cells: Sequence[Cell],
    sizes: Sequence[int],
    seconds: float,
    take: Callable[[Row], None],
) -> None:
    """Measures as one of the workers of the cluster that the environment describes.

    Args:
        cells: What is measured.
        sizes: Bytes of the arrays.
        seconds: How long the calls of a row are repeated, about.
        take: Receives each row as soon as it has been measured.

    Raises:
        ConfigError: The cluster has ps tasks, or its workers cannot connect to each other.
        PeerError: A worker was lost or did not come.
        TfdistError: A result was wrong.
    """
    for row in Worker(Cluster.from_environment()).measure(cells, sizes, seconds):
        take(row)
