"""Resolves names, listens and connects for the meeting, without blocking."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

# Family and socket address, as `getaddrinfo` has them.
Endpoint = tuple[int, Any]


async def resolve(host: str, port: int) -> list[Endpoint]:
    """Returns the addresses of `host`.

    A name server that does not answer can hold `getaddrinfo` for minutes, and
    asyncio's own thread pool would wait for it at the end, so each call has its own
    daemon thread.

    Raises:
        OSError: The name does not resolve.
    """
    with contextlib.suppress(ValueError):
        family = socket.AF_INET if ipaddress.ip_address(host).version == 4 else socket.AF_INET6
        if family == socket.AF_INET or "%" not in host:
            return [(family, (host, port))]
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Endpoint]] = loop.create_future()

    def deliver(places: list[Endpoint], error: OSError | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(places)
        else:
            answer.set_exception(error)

    def look_up() -> None:
        places: list[Endpoint] = []
        failure: OSError | None = None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            places = [(family, place) for family, _, _, _, place in found]
        except OSError as error:
            failure = error
        except UnicodeError as error:  # A label that IDNA does not allow.
            failure = OSError(str(error))
        with contextlib.suppress(RuntimeError):  # The loop has closed: nobody waits any more.
            loop.call_soon_threadsafe(deliver, places, failure)

    threading.Thread(target=look_up, name=f"resolve {host}", daemon=True).start()
    return await answer


async def listen(host: str, port: int) -> socket.socket:
    """Returns a socket bound to `host` where that is this machine, else to all interfaces.

    In a container the host's name may stand for an address outside it.

    Raises:
        OSError: The port is taken, or may not be used.
    """
    try:
        async with asyncio.timeout(2.0):
            places = await resolve(host, port)
    except (OSError, TimeoutError):
        places = []
    for place in places:
        try:
            return _bind(place)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    if places and all(family == socket.AF_INET6 for family, _ in places):
        return _bind((socket.AF_INET6, ("::", port)))
    return _bind((socket.AF_INET, ("0.0.0.0", port)))


def _bind(place: Endpoint) -> socket.socket:
    family, address = place
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener


async def connect(
    places: list[Endpoint], prepare: Callable[[socket.socket], None] | None = None
) -> socket.socket:
    """Connects to the first address that answers; returns a socket that does not block.

    Args:
        places: The addresses.
        prepare: Sets options that must be set before a socket is connected.

    Raises:
        OSError: None does.
    """
    loop = asyncio.get_running_loop()
    failure = OSError("no address")
    for family, address in places[:4]:
        client = socket.socket(family, socket.SOCK_STREAM)
        try:
            client.setblocking(False)
            if prepare is not None:
                prepare(client)
            await loop.sock_connect(client, address)
            # Towards a free local port the kernel may pick that very port as
            # ours and connect the socket to itself.
            if client.getsockname() == client.getpeername():
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            return client
        except OSError as error:
            client.close()
            failure = error
        except BaseException:
            client.close()
            raise
    raise failure


def reason(error: OSError) -> str:
    """Returns a short description of an error."""
    # asyncio puts the address into the text; the number alone says what happened.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
