from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import pytest

from tfdist.rendezvous.acceptor import Acceptor

SOON = 30.0


async def say_nothing(client: socket.socket) -> None:
    while await asyncio.get_running_loop().sock_recv(client, 1024):
        pass


async def echo(client: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, await loop.sock_recv(client, 5))


def make_listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    listener.setblocking(False)
    return listener


def is_hung_up_on(client: socket.socket) -> bool:
    client.settimeout(SOON)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("turns", range(8))
def test_no_caller_is_left_open_whenever_it_ends(turns: int) -> None:
    listener = make_listener()
    clients = []

    async def run() -> None:
        door = Acceptor(listener, say_nothing, callers=8)
        serving = asyncio.create_task(door.serve())
        await asyncio.sleep(0)
        clients.extend(socket.create_connection(listener.getsockname()) for _ in range(20))
        for _ in range(turns):
            await asyncio.sleep(0)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(run())
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
    for client in clients:
        with client:
            assert is_hung_up_on(client)
    assert listener.fileno() == -1


def test_a_caller_is_answered_and_hung_up_on() -> None:
    listener = make_listener()

    async def run() -> bytes:
        door = Acceptor(listener, echo, callers=2)
        serving = asyncio.create_task(door.serve())
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"here\n")
        answer = await reader.readline()
        assert await reader.read() == b""
        writer.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return answer

    assert asyncio.run(asyncio.wait_for(run(), SOON)) == b"here\n"


def test_the_oldest_caller_makes_room_unless_it_is_kept() -> None:
    listener = make_listener()

    async def run() -> list[bytes]:
        async def answer(client: socket.socket) -> None:
            loop = asyncio.get_running_loop()
            if await loop.sock_recv(client, 16) == b"keep\n":
                door.keep()
            await loop.sock_sendall(client, b"noted\n")
            await loop.sock_recv(client, 1)

        door = Acceptor(listener, answer, callers=2)
        serving = asyncio.create_task(door.serve())
        connections = []
        for word in (b"keep\n", b"other\n", b"other\n", b"other\n"):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(word)
            assert await reader.readline() == b"noted\n"
            connections.append((reader, writer))
        with pytest.raises((TimeoutError, asyncio.TimeoutError)):
            await asyncio.wait_for(connections[0][0].read(1), 0.2)  # Still there.
        try:
            gone = await connections[1][0].read(1)  # The oldest that is not kept.
        except ConnectionResetError:
            gone = b""
        for _, writer in connections:
            writer.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return [gone]

    assert asyncio.run(asyncio.wait_for(run(), SOON)) == [b""]


def test_a_detached_caller_stays_open() -> None:
    listener = make_listener()
    taken = []

    async def take(client: socket.socket) -> None:
        taken.append(socket.socket(fileno=client.detach()))

    async def run() -> None:
        serving = asyncio.create_task(Acceptor(listener, take, callers=2).serve())
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        while not taken:
            await asyncio.sleep(0.01)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        with taken[0]:
            taken[0].sendall(b"here\n")
            assert await reader.readline() == b"here\n"
        writer.close()

    asyncio.run(asyncio.wait_for(run(), SOON))
