"""Connects the workers of a ring, and authenticates every connection with a shared secret.

A worker listens for the previous one and calls the next one, twice: a connection for data and one
for news. Both ends prove that they have the secret that the workers share (`signed_connection`),
and the caller says which place in the ring it calls from and to. A stranger's message is compared
with the expected one, and nothing more is read from it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import socket
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tfdist.errors import ConfigError
from tfdist.rendezvous import sockets
from tfdist.rendezvous.acceptor import Acceptor
from tfdist.rendezvous.signed_connection import CALLER, LISTENER, SignedConnection, derive_key

PORT_VARIABLE = "TFDIST_RING_PORT"

# Seconds that either end may take to prove itself.
PROOF_SECONDS = 5.0
# The most callers that have not proven themselves; with one more, the oldest is disconnected.
_MOST_CALLERS = 64
_PAUSE = 0.1
# The buffers of a data connection. Linux grows buffers itself, but slowly, and only up to the same
# limit; where the limit is below this size, its own growth is better.
_BUFFER_BYTES = 4 << 20
# Seconds without an answer of its kernel after which a neighbour counts as lost, about.
SILENCE = 30
# Where Linux counts, in what it tells of a connection, the times that it has sent data again since
# the other machine last acknowledged any (`struct tcp_info`).
_RETRANSMITS = 2

_DATA, _NEWS = 0, 1
_MOST_BYTES = 100  # of a message

_Result = TypeVar("_Result")


class Connections(NamedTuple):
    """The sockets of one worker to its neighbours, connected and authenticated."""

    to_next: socket.socket
    from_previous: socket.socket
    news_next: socket.socket
    news_previous: socket.socket


def listen(host: str, rank: int = 0) -> socket.socket:
    """Opens the port to which the previous worker connects.

    Args:
        host: This task's own name or address in the cluster; where this machine has no such
            address (as in some containers), the port is opened on all its addresses.
        rank: This worker. With TFDIST_RING_PORT set, the port is that number plus the rank, so
            that firewalls can allow it and workers of one machine have different ones; otherwise
            it is any free port.

    Raises:
        ConfigError: TFDIST_RING_PORT is not a port.
        OSError: The port cannot be opened.
    """
    text = os.environ.get(PORT_VARIABLE, "")
    port = 0
    if text:
        port = int(text) + rank if text.isascii() and text.isdigit() else 0
        if not 1 <= port <= 65535:
            raise ConfigError(
                f"{PORT_VARIABLE}: {text!r} is given; allowed: a port such that it and the "
                "number of the last worker added to it are from 1 to 65535"
            )
    listener = _in_a_loop(sockets.listen(host, port))
    _enlarge(listener)
    return listener


def connect(
    rank: int,
    size: int,
    listener: socket.socket,
    following: tuple[str, int],
    secret: bytes,
    *,
    seconds: float = 15.0,
) -> Connections:
    """Connects to both neighbours.

    Args:
        rank: This worker.
        size: The number of workers, two or more.
        listener: The socket to which the previous worker connects.
        following: Host and port of the next worker.
        secret: The secret that only the workers know.
        seconds: The time limit.

    Raises:
        OSError: A neighbour was not reached, or did not come, in time.
    """
    neighbours = _Neighbours(rank, size, listener, following, secret)
    called, accepted = _in_a_loop(neighbours.connect(seconds))
    for connection in (called[_DATA], accepted[_DATA], called[_NEWS], accepted[_NEWS]):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for connection in (called[_NEWS], accepted[_NEWS]):
        _see_silence(connection)
    return Connections(called[_DATA], accepted[_DATA], called[_NEWS], accepted[_NEWS])


class _Neighbours:
    """Calls the next worker, and waits for the previous one; see `connect`."""

    def __init__(
        self,
        rank: int,
        size: int,
        listener: socket.socket,
        following: tuple[str, int],
        secret: bytes,
    ) -> None:
        self._rank, self._size = rank, size
        self._listener = listener
        self._following = following
        self._key = derive_key("ring", secret)
        self._called: dict[int, socket.socket] = {}
        self._accepted: dict[int, socket.socket] = {}
        self._complete = asyncio.Event()
        self._failure = OSError("no time is left")

    async def connect(
        self, seconds: float
    ) -> tuple[dict[int, socket.socket], dict[int, socket.socket]]:
        """Returns the connections to the next and from the previous worker, by channel."""
        self._listener.setblocking(False)
        acceptor = Acceptor(self._listener.dup(), self._answer, callers=_MOST_CALLERS)
        serving = asyncio.create_task(acceptor.serve())
        calling = asyncio.gather(*(self._call(channel) for channel in (_DATA, _NEWS)))
        done = False
        try:
            async with asyncio.timeout(seconds):
                await self._complete.wait()
                await calling
            done = True
        except TimeoutError:
            if not self._complete.is_set():
                previous = (self._rank - 1) % self._size
                raise TimeoutError(f"worker {previous} did not call in time") from None
            host, port = self._following
            name = f"worker {(self._rank + 1) % self._size} at {host}:{port}"
            raise OSError(f"{name}: {self._failure}") from None
        finally:
            serving.cancel()
            calling.cancel()
            await asyncio.gather(serving, calling, return_exceptions=True)
            if not done:
                _hang_up([*self._called.values(), *self._accepted.values()])
        return self._called, self._accepted

    async def _call(self, channel: int) -> None:
        """Connects to the next worker, again after each failure, until it has proven itself."""
        while True:
            try:
                for endpoint in await sockets.resolve(*self._following):
                    async with asyncio.timeout(PROOF_SECONDS):
                        if await self._try(endpoint, channel):
                            return
            except TimeoutError:
                self._failure = TimeoutError("it does not answer")
            except OSError as error:
                self._failure = error
            await asyncio.sleep(_PAUSE)

    async def _try(self, endpoint: sockets.Endpoint, channel: int) -> bool:
        try:
            client = await sockets.connect([endpoint], _enlarge if channel == _DATA else None)
        except OSError as error:
            self._failure = error
            return False  # Another address of the same name may answer.
        try:
            connection = SignedConnection(client, self._key, CALLER, most_bytes=_MOST_BYTES)
            await connection.greet()
            await connection.send(self._place(self._rank, channel))
            await connection.receive_proven()
        except BaseException:
            client.close()
            raise
        self._called[channel] = client
        return True

    async def _answer(self, client: socket.socket) -> None:
        """Takes the connection of a caller that proves to be the previous worker."""
        with contextlib.suppress(OSError, TimeoutError):
            connection = SignedConnection(client, self._key, LISTENER, most_bytes=_MOST_BYTES)
            async with asyncio.timeout(PROOF_SECONDS):
                await connection.greet()
                place = await connection.receive_proven()
                for channel in (_DATA, _NEWS):
                    expected = self._place((self._rank - 1) % self._size, channel)
                    if place != expected or channel in self._accepted:
                        continue
                    await connection.send("welcome")
                    self._accepted[channel] = socket.socket(fileno=client.detach())
                    self._accepted[channel].setblocking(False)
                    if len(self._accepted) == 2:
                        self._complete.set()

    def _place(self, caller: int, channel: int) -> list[int]:
        return [self._size, caller, (caller + 1) % self._size, channel]


def _hang_up(connections: Iterable[socket.socket]) -> None:
    for connection in connections:
        connection.close()


def _enlarge(connection: socket.socket) -> None:
    for name, option in (("wmem_max", socket.SO_SNDBUF), ("rmem_max", socket.SO_RCVBUF)):
        with contextlib.suppress(OSError, ValueError):
            if int(Path("/proc/sys/net/core", name).read_text()) >= _BUFFER_BYTES:
                connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


def _see_silence(connection: socket.socket) -> None:
    """Makes the kernel end a connection when the other machine is lost, as in a power failure."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", SILENCE // 3),
        ("TCP_KEEPINTVL", SILENCE // 6),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", SILENCE * 1000),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def sends_again(connection: socket.socket) -> bool:
    """Returns whether the other machine has not acknowledged what was sent there, in time.

    A neighbour that runs and reads nothing is no such case, for however long: its machine answers
    that there is no room. So TCP_USER_TIMEOUT, which ends both, is not for data.
    """
    if not hasattr(socket, "TCP_INFO"):
        return False
    try:
        found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RETRANSMITS + 1)
    except OSError:
        return False
    return found[-1] > 0


def _in_a_loop(what: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine in a new thread, as the calling one may have a running event loop."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, what).result()
