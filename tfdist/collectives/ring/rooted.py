"""Collectives of a ring that begin or end at one worker: gather and scatter.

The ring is a chain then: to the root, or from it. Each worker passes on what is for others chunk by
chunk, so the busiest connection, the root's, is busy all the time.
"""

from __future__ import annotations

import numpy as np

from tfdist.collectives.ring.collective import GATHER_ON_ONE, SCATTER_FROM_ONE, Collectives
from tfdist.collectives.ring.stream import as_bytes, in_chunks


def gather(
    collectives: Collectives, rank: int, size: int, own: np.ndarray, root: int
) -> list[np.ndarray]:
    """Sends this worker's array towards the root; returns all arrays there.

    Args:
        collectives: This worker's collectives.
        rank: This worker.
        size: The number of workers, two or more.
        own: Its array, of one dimension, of the same type and size on all workers.
        root: The worker that gets them.

    Returns:
        The arrays by rank on the root, else nothing.
    """
    is_root = rank == root
    behind = (rank - root - 1) % size  # Workers whose arrays come through this one.
    found = {rank: own}
    with collectives.begin(GATHER_ON_ONE, own, None, sends=not is_root) as call:
        if not is_root:
            call.send(as_bytes(own))
        if behind:
            call.read_header()
        for hop in range(1, behind + 1):
            piece = found[(rank - hop) % size] = np.empty_like(own)
            call.run(in_chunks(piece, None if is_root else call.send), finish=False)
        call.run([])
    return [found[each] for each in range(size)] if is_root else []


def scatter(
    collectives: Collectives,
    rank: int,
    size: int,
    own: np.ndarray,
    whole: np.ndarray | None,
    root: int,
) -> None:
    """Receives this worker's part, behind those of the workers after it.

    Args:
        collectives: This worker's collectives.
        rank: This worker.
        size: The number of workers, two or more.
        own: Room for its part, of one dimension, of the same type and size on all workers.
        whole: On the root, the parts by rank, one after another.
        root: The worker that has them.
    """
    beyond = (root - rank - 1) % size  # Workers whose parts go through this one.
    with collectives.begin(SCATTER_FROM_ONE, own, None, sends=beyond > 0) as call:
        if whole is not None:
            parts = whole.reshape(size, -1)
            for hop in range(size - 1, 0, -1):
                call.send(as_bytes(parts[(root + hop) % size]))
            np.copyto(own, parts[rank])
            call.run([])
            return
        call.read_header()
        for _ in range(beyond):
            call.run(in_chunks(np.empty_like(own), call.send), finish=False)
        call.run(in_chunks(own, None))
