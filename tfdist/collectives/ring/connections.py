"""Connects the workers of a ring, and authenticates every connection with a shared secret.

A worker listens for the previous one and calls the next one, twice: a connection for data and one
for news. A caller receives a nonce at once, and has a few seconds to answer with its own nonce and
an HMAC of both under the secret that the workers share; the listener proves itself likewise.
The place in the ring is part of the proof. A stranger's answer is compared with the expected one,
and nothing more is read from it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import hmac
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tfdist.errors import ConfigError
from tfdist.rendezvous import sockets

PORT_VARIABLE = "TFDIST_RING_PORT"

# Seconds that a caller may take to prove itself.
PROOF_SECONDS = 5.0
# The most callers that have not proven themselves; with one more, the oldest is disconnected.
_MOST_CALLERS = 64
_PAUSE = 0.1
# The buffers of a data connection. Linux grows buffers itself, but slowly, and only up to the same
# limit; where the limit is below this size, its own growth is better.
_BUFFER_BYTES = 4 << 20
# Seconds without an answer of its kernel after which a neighbour counts as lost, about.
_SILENCE = 30

_DATA, _NEWS = 0, 1
_NONCE = 32
_ANSWER = struct.Struct(f">{_NONCE}sIIB32s")

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
    deadline = time.monotonic() + seconds
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        calling = pool.submit(_call_next, rank, size, following, secret, deadline)
        accepted: dict[int, socket.socket] = {}
        try:
            accepted = _accept(rank, size, listener, secret, deadline)
            called = calling.result()
        except BaseException:
            _hang_up(accepted.values())
            if calling.exception() is None:
                _hang_up(calling.result())
            raise
    for connection in (called[_DATA], accepted[_DATA], called[_NEWS], accepted[_NEWS]):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for connection in (called[_NEWS], accepted[_NEWS]):
        _see_silence(connection)
    return Connections(called[_DATA], accepted[_DATA], called[_NEWS], accepted[_NEWS])


class _Handshake:
    """Computes the proofs that the caller and the listener of a connection exchange."""

    def __init__(self, secret: bytes, size: int, caller: int, listener: int) -> None:
        self._secret = secret
        self._place = struct.pack(">III", size, caller, listener)

    def proof(self, who: bytes, channel: int, first: bytes, second: bytes) -> bytes:
        text = b"tfdist ring %s %d " % (who, channel) + self._place + first + second
        return hmac.digest(self._secret, text, hashlib.sha256)


def _call_next(
    rank: int, size: int, place: tuple[str, int], secret: bytes, deadline: float
) -> tuple[socket.socket, socket.socket]:
    handshake = _Handshake(secret, size, rank, (rank + 1) % size)
    made: list[socket.socket] = []
    try:
        for channel in (_DATA, _NEWS):
            made.append(_call(rank, size, place, handshake, channel, deadline))
    except BaseException:
        _hang_up(made)
        raise
    return made[0], made[1]


def _call(
    rank: int,
    size: int,
    place: tuple[str, int],
    handshake: _Handshake,
    channel: int,
    deadline: float,
) -> socket.socket:
    """Connects to the next worker, again after each failure, until it has proven itself."""
    failure: OSError = TimeoutError("no time is left")
    while (left := deadline - time.monotonic()) > 0:
        try:
            endpoints = _in_a_loop(sockets.resolve(*place), left)
            return _try(endpoints, rank, size, handshake, channel, min(left, PROOF_SECONDS))
        except OSError as error:
            failure = error
        time.sleep(_PAUSE)
    raise OSError(f"worker {(rank + 1) % size} at {place[0]}:{place[1]}: {failure}")


def _try(
    endpoints: list[sockets.Endpoint],
    rank: int,
    size: int,
    handshake: _Handshake,
    channel: int,
    seconds: float,
) -> socket.socket:
    failure: OSError = OSError("the name has no address")
    for family, address in endpoints:
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            if channel == _DATA:
                _enlarge(connection)
            connection.settimeout(seconds)
            connection.connect(address)
            theirs = _read(connection, _NONCE)
            own = secrets.token_bytes(_NONCE)
            proof = handshake.proof(b"caller", channel, theirs, own)
            connection.sendall(_ANSWER.pack(own, size, rank, channel, proof))
            answer = _read(connection, hashlib.sha256().digest_size)
            if not hmac.compare_digest(answer, handshake.proof(b"listener", channel, own, theirs)):
                raise ConnectionError("it does not know the secret")
            return connection
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
    raise failure


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("it hung up")
        data += more
    return data


class _Guest:
    """A caller that has yet to prove itself."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.nonce = secrets.token_bytes(_NONCE)
        self.until = time.monotonic() + PROOF_SECONDS
        self.said = b""


def _accept(
    rank: int, size: int, listener: socket.socket, secret: bytes, deadline: float
) -> dict[int, socket.socket]:
    """Accepts callers until the previous worker has proven both its connections."""
    previous = (rank - 1) % size
    handshake = _Handshake(secret, size, previous, rank)
    guests: dict[socket.socket, _Guest] = {}  # Oldest first.
    found: dict[int, socket.socket] = {}
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        selector.register(listener, selectors.EVENT_READ)
        stack.callback(lambda: _hang_up(guest.connection for guest in guests.values()))

        def dismiss(guest: _Guest) -> None:
            selector.unregister(guest.connection)
            del guests[guest.connection]
            guest.connection.close()

        while len(found) < 2:
            now = time.monotonic()
            if now > deadline:
                _hang_up(found.values())
                raise TimeoutError(f"worker {previous} did not call in time")
            for guest in [guest for guest in guests.values() if guest.until < now]:
                dismiss(guest)
            for key, _ in selector.select(0.2):
                if key.fileobj is listener:
                    newcomer = _welcome(listener)
                    if newcomer is not None:
                        guests[newcomer.connection] = newcomer
                        selector.register(newcomer.connection, selectors.EVENT_READ, newcomer)
                        if len(guests) > _MOST_CALLERS:
                            dismiss(next(iter(guests.values())))
                    continue
                guest = key.data
                if guest.connection not in guests:
                    continue  # Dismissed just now.
                if not _listen_to(guest):
                    dismiss(guest)
                elif len(guest.said) == _ANSWER.size:
                    channel = _check(guest, handshake, size, previous)
                    if channel is None or channel in found:
                        dismiss(guest)
                        continue
                    selector.unregister(guest.connection)
                    found[channel] = guests.pop(guest.connection).connection
    return found


def _welcome(listener: socket.socket) -> _Guest | None:
    try:
        connection, _ = listener.accept()
    except OSError:
        return None  # The caller has gone already.
    guest = _Guest(connection)
    connection.setblocking(False)
    try:
        connection.send(guest.nonce)
    except OSError:
        connection.close()
        return None
    return guest


def _listen_to(guest: _Guest) -> bool:
    """Reads from the guest; returns False once its connection is closed."""
    try:
        data = guest.connection.recv(_ANSWER.size - len(guest.said))
    except BlockingIOError:
        return True
    except OSError:
        return False
    guest.said += data
    return bool(data)


def _check(guest: _Guest, handshake: _Handshake, size: int, previous: int) -> int | None:
    """Returns the channel of a guest whose proof is right, and answers it; else None."""
    nonce, its_size, its_rank, channel, proof = _ANSWER.unpack(guest.said)
    want = handshake.proof(b"caller", channel, guest.nonce, nonce)
    if not hmac.compare_digest(proof, want):
        return None
    if (its_size, its_rank) != (size, previous) or channel not in (_DATA, _NEWS):
        return None
    try:
        guest.connection.send(handshake.proof(b"listener", channel, nonce, guest.nonce))
    except OSError:
        return None
    return int(channel)


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
        ("TCP_KEEPIDLE", _SILENCE // 3),
        ("TCP_KEEPINTVL", _SILENCE // 6),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", _SILENCE * 1000),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _in_a_loop(what: Coroutine[Any, Any, _Result], seconds: float | None = None) -> _Result:
    """Runs a coroutine in a new thread, as the calling one may have a running event loop."""

    async def within() -> _Result:
        async with asyncio.timeout(seconds):
            return await what

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, within()).result()
