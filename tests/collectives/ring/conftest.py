"""Rings of threads of this process, over loopback."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tfdist.collectives.ring.connections import connect, listen
from tfdist.collectives.ring.ring import Ring


class Workers:
    """All workers of a ring, each of which acts in a thread."""

    def __init__(self, size: int, **options: Any) -> None:
        self.size = size
        self._pool = ThreadPoolExecutor(size)
        listeners = [listen("127.0.0.1") for _ in range(size)]
        ports = [listener.getsockname()[1] for listener in listeners]
        secret = secrets.token_bytes(32)

        def join(rank: int) -> Ring:
            place = ("127.0.0.1", ports[(rank + 1) % size])
            connections = connect(rank, size, listeners[rank], place, secret) if size > 1 else None
            listeners[rank].close()
            return Ring(rank, size, connections, **options)

        self.rings = list(self._pool.map(join, range(size)))

    def start(self, act: Callable[[Ring], Any], ranks: Any = None) -> list[Any]:
        """Begins to do the same on all workers, or on some; returns futures."""
        chosen = self.rings if ranks is None else [self.rings[rank] for rank in ranks]
        return [self._pool.submit(act, ring) for ring in chosen]

    def each(self, act: Callable[[Ring], Any]) -> list[Any]:
        """Does the same on all workers."""
        return [future.result(30) for future in self.start(act)]

    def close(self) -> None:
        for ring in self.rings:
            ring.close()
        self._pool.shutdown()


@pytest.fixture
def workers() -> Iterator[Callable[..., Workers]]:
    """Makes rings, and closes them."""
    made: list[Workers] = []

    def make(size: int, **options: Any) -> Workers:
        made.append(Workers(size, **options))
        return made[-1]

    yield make
    for ring in made:
        ring.close()


@pytest.fixture(scope="module")
def rings() -> Iterator[dict[int, Workers]]:
    """Rings of one to five workers, to be left as they are found."""
    made = {size: Workers(size) for size in range(1, 6)}
    yield made
    for ring in made.values():
        ring.close()


@pytest.fixture(scope="module")
def rings_of_a_host() -> Iterator[dict[int, Workers]]:
    """Rings of two to five workers that share memory, to be left as they are found."""
    made = {size: Workers(size) for size in range(2, 6)}
    for ring in made.values():
        assert all(ring.each(lambda worker: worker.share_memory()))
    yield made
    for ring in made.values():
        ring.close()
