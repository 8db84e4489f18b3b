"""Only who has the key is believed, and each proof serves once."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tfdist.rendezvous.signed_connection import (
    CALLER,
    GREETING_BYTES,
    LISTENER,
    AnotherProgramError,
    Message,
    SignedConnection,
    derive_key,
)

KEY = derive_key("test", b"secret")
SOON = 30.0


def between(
    talk: Callable[[SignedConnection, SignedConnection], Awaitable[None]],
    keys: tuple[bytes, bytes] = (KEY, KEY),
    ends: tuple[bytes, bytes] = (CALLER, LISTENER),
) -> None:
    """Lets two ends talk that have greeted each other."""

    async def run() -> None:
        one, other = socket.socketpair()
        with one, other:
            one.setblocking(False)
            other.setblocking(False)
            first = SignedConnection(one, keys[0], ends[0], most_bytes=1000)
            second = SignedConnection(other, keys[1], ends[1], most_bytes=1000)
            await asyncio.gather(first.greet(), second.greet())
            await talk(first, second)

    asyncio.run(asyncio.wait_for(run(), SOON))


def test_what_is_said_is_heard_in_both_directions() -> None:
    async def talk(one: SignedConnection, other: SignedConnection) -> None:
        for content in ([1, "a"], {"b": None}, 7):
            await one.send(content)
            await other.send([content])
        for content in ([1, "a"], {"b": None}, 7):
            assert await other.receive() == Message(content, True)
            assert await one.receive_proven() == [content]

    between(talk)


def test_who_has_another_key_is_heard_and_not_believed() -> None:
    async def talk(one: SignedConnection, other: SignedConnection) -> None:
        await one.send("hello")
        assert await other.receive() == Message("hello", False)
        await other.send("hello")
        with pytest.raises(ConnectionError, match="does not have the key"):
            await one.receive_proven()

    between(talk, keys=(KEY, derive_key("test", b"another secret")))


def test_a_message_that_is_reflected_is_not_believed() -> None:
    async def talk(one: SignedConnection, other: SignedConnection) -> None:
        await one.send("hello")
        assert await other.receive() == Message("hello", False)

    between(talk, ends=(CALLER, CALLER))


def test_a_proof_serves_once() -> None:
    """Not for the next message, nor on another connection, nor for another text."""

    async def record(connection: SignedConnection, other: socket.socket) -> bytes:
        await connection.send("hello")
        return await asyncio.get_running_loop().sock_recv(other, 1000)

    async def run() -> None:
        believed = []
        recorded = b""
        for change in ("", "again", "earlier connection", "text"):
            one, other = socket.socketpair()
            with one, other:
                one.setblocking(False)
                other.setblocking(False)
                caller = SignedConnection(one, KEY, CALLER)
                listener = SignedConnection(other, KEY, LISTENER)
                await asyncio.gather(caller.greet(), listener.greet())
                before, recorded = recorded, await record(caller, other)
                said = {
                    "": recorded,
                    "again": recorded * 2,
                    "earlier connection": before,
                    "text": recorded.replace(b"hello", b"howdy"),
                }[change]
                await asyncio.get_running_loop().sock_sendall(one, said)
                if change == "again":
                    assert (await listener.receive()).is_proven
                believed.append((await listener.receive()).is_proven)
        assert believed == [True, False, False, False]

    asyncio.run(asyncio.wait_for(run(), SOON))


def test_a_key_serves_one_purpose() -> None:
    keys = {
        derive_key("meeting", b"a", b"b"),
        derive_key("hosts", b"a", b"b"),
        derive_key("meeting", b"ab"),
        derive_key("meeting", b"b", b"a"),
    }
    assert len(keys) == 4


def test_no_more_is_read_than_a_message() -> None:
    """What follows the handshake belongs to whoever uses the socket then."""

    async def talk(one: SignedConnection, other: SignedConnection) -> None:
        await one.send("hello")
        await asyncio.get_running_loop().sock_sendall(one._socket, b"raw data")
        assert await other.receive_proven() == "hello"
        assert await asyncio.get_running_loop().sock_recv(other._socket, 100) == b"raw data"

    between(talk)


def test_a_message_that_is_too_long_or_no_json_is_refused() -> None:
    async def talk(one: SignedConnection, other: SignedConnection) -> None:
        await one.send("x" * 998)
        assert len(await other.receive_proven()) == 998
        await one.send("x" * 999)
        with pytest.raises(ConnectionError, match="too long"):
            await other.receive()
        for text in (b"[" * 900, b"\xff", b""):
            head = len(text).to_bytes(4, "big") + bytes(32)
            await asyncio.get_running_loop().sock_sendall(other._socket, head + text)
            with pytest.raises(ConnectionError, match="not JSON"):
                await one.receive()
        other.close()
        with pytest.raises(ConnectionResetError):
            await one.receive()

    between(talk)


def greeted_with(data: bytes) -> bytes:
    """How it sees that another program answers."""

    async def run() -> bytes:
        one, other = socket.socketpair()
        with one, other:
            one.setblocking(False)
            other.sendall(data)
            if not data:
                other.close()
            with pytest.raises(AnotherProgramError) as caught:
                await SignedConnection(one, KEY, CALLER).greet()
            return caught.value.received

    return asyncio.run(asyncio.wait_for(run(), SOON))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x00\x18\x04\x00\x00\x00\x00\x00",  # Of TensorFlow's server, which waits then.
        b"tfdist/2 " + b"c" * 32 + b"\n",
        b"tfdist/3 " + b"C" * 32 + b"\n",
        b"tfdist/3 " + b"c" * 33,
    ],
)
def test_another_program_is_known_at_once_by_how_it_begins(data: bytes) -> None:
    assert greeted_with(data) == data


def test_of_another_program_no_more_is_read_than_a_greeting() -> None:
    assert greeted_with(b"x" * 1000) == b"x" * GREETING_BYTES


def test_a_greeting_tells_nothing_that_another_connection_could_use() -> None:
    async def run() -> set[Any]:
        seen = set()
        for _ in range(3):
            one, other = socket.socketpair()
            with one, other:
                one.setblocking(False)
                greeting = asyncio.create_task(SignedConnection(one, KEY, LISTENER).greet())
                await asyncio.sleep(0)
                seen.add(other.recv(1000))
                greeting.cancel()
        return seen

    seen = asyncio.run(run())
    assert len(seen) == 3
    assert all(len(greeting) == GREETING_BYTES for greeting in seen)
    assert KEY.hex() not in json.dumps([greeting.decode() for greeting in seen])
