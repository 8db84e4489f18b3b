"""Rings of threads of this process, over loopback."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tfdist.collectives.ring.connections import connect, listen
from tfdist.collectives.ring.ring import Ring


def flipping(connection: socket.socket, at: int) -> socket.socket:
    """Puts something between a worker and the previous one that flips a bit of a byte."""
    near, far = socket.socketpair()
    connection.setblocking(True)

    def pump() -> None:
        done = 0
        with contextlib.suppress(OSError), connection, far:
            while data := bytearray(connection.recv(65536)):
                if done <= at < done + len(data):
                    data[at - done] ^= 4
                done += len(data)
                far.sendall(data)

    threading.Thread(target=pump, daemon=True).start()
    return near


class Workers:
    """All workers of a ring, each of which acts in a thread.

    Args:
        size: How many.
        flips: The number of a byte that worker 1 receives with another bit; None for none.
        **options: Of `Ring`.
    """

    def __init__(self, size: int, *, flips: int | None = None, **options: Any) -> None:
        self.size = size
        self._pool = ThreadPoolExecutor(size)
        listeners = [listen("127.0.0.1") for _ in range(size)]
        ports = [listener.getsockname()[1] for listener in listeners]
        secret = secrets.token_bytes(32)

        def join(rank: int) -> Ring:
            place = ("127.0.0.1", ports[(rank + 1) % size])
            connections = connect(rank, size, listeners[rank], place, secret) if size > 1 else None
            listeners[rank].close()
            if rank == 1 and flips is not None:
                connections = connections._replace(
                    from_previous=flipping(connections.from_previous, flips)
                )
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
