"""Checks a task's own address: whether it leads to this machine, and whether its port is free."""

from __future__ import annotations

import asyncio
import secrets
import socket

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.rendezvous.sockets import Endpoint, connect, listen, reason, resolve

# Seconds for the name to resolve, and then for a call to come through.
_SECONDS = 2.0
_BYTES = 16


def check_own_address(cluster: Cluster) -> bool:
    """Checks that the address of this task leads to this machine.

    An address that no interface has may do so all the same, as where a container is reached through
    its host, so this task calls itself before it refuses one. A name that does not resolve yet, and
    a port that a running task has, are accepted.

    Returns:
        Whether it does; False where that is unknown, and where this task has no address.

    Raises:
        ConfigError: It leads elsewhere, or nowhere.
    """
    task = cluster.task
    if task.host is None or task.port is None:
        return False
    found = asyncio.run(_leads_here(task.host, task.port))
    if found is not False:
        return bool(found)
    raise ConfigError(
        f"{cluster.source}: {task} has the address {task.address}, which does not lead to this "
        f"machine; start {task} where it does, or give an address of this machine"
    )


def check_own_port(cluster: Cluster) -> None:
    """Checks that this task can listen on its port.

    Raises:
        ConfigError: Another program has it, or it may not be used.
    """
    task = cluster.task
    if task.host is None or task.port is None:
        return
    try:
        asyncio.run(listen(task.host, task.port)).close()
    except OSError as error:
        raise ConfigError(
            f"{cluster.source}: {task} has the port {task.port}, which cannot be used "
            f"({reason(error)}); end the program that has it, or give another port"
        ) from None


async def _leads_here(host: str, port: int) -> bool | None:
    """Returns whether a call to the address comes out here; None where that is unknown."""
    try:
        async with asyncio.timeout(_SECONDS):
            places = await resolve(host, port)
    except (OSError, TimeoutError):
        return None
    return any(map(_is_own, places)) or await _is_answered_here(host, port, places)


def _is_own(place: Endpoint) -> bool:
    """Returns whether an interface of this machine has the address."""
    family, address = place
    with socket.socket(family, socket.SOCK_STREAM) as one:
        try:
            one.bind((address[0], 0, *address[2:]))
        except OSError:
            return False
    return True


async def _is_answered_here(host: str, port: int, places: list[Endpoint]) -> bool | None:
    """Returns whether a call comes out at this machine's port; None where that is taken."""
    try:
        listener = await listen(host, port)
    except OSError:
        return None
    word = secrets.token_bytes(_BYTES)
    with listener:
        answering = asyncio.create_task(_hear(listener, word))
        try:
            async with asyncio.timeout(_SECONDS):
                with await connect(places) as caller:
                    await asyncio.get_running_loop().sock_sendall(caller, word)
                    await answering
            return True
        except (OSError, TimeoutError):
            return False
        finally:
            answering.cancel()


async def _hear(listener: socket.socket, word: bytes) -> None:
    """Returns when a caller has said the word; other tasks may call too."""
    loop = asyncio.get_running_loop()
    while True:
        caller, _ = await loop.sock_accept(listener)
        with caller:
            caller.setblocking(False)
            if await loop.sock_recv(caller, _BYTES) == word:
                return
