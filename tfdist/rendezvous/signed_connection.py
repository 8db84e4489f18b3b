"""A connection whose two ends prove, with a key that both have, who they are and what they say.

Each end begins with a greeting: a prefix and a challenge that is drawn for this connection. Each
message after that carries an HMAC, under the key, of the end that sends it, both challenges, the
number of the message and its text. So a proof serves once only: not on another connection, not in
the other direction, and not for another message.

Anyone on the network may be at the other end, so all that is read has a limit, and nothing is read
beyond a message: what follows on the socket stays there. How long to wait is the caller's to say,
with `asyncio.timeout`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import socket
import struct
from typing import Any, NamedTuple

CALLER, LISTENER = b"caller", b"listener"

_GREETING = b"tfdist/4 "
_CHALLENGE = re.compile(rb"[0-9a-f]{32}\n")
GREETING_BYTES = len(_GREETING) + 33
_PROOF_BYTES = 32
_HEAD = struct.Struct(f">I{_PROOF_BYTES}s")


class AnotherProgramError(ConnectionError):
    """The other end is not tfdist, or not of this version.

    Attributes:
        received: How it began; empty where it has hung up.
    """

    def __init__(self, received: bytes = b"") -> None:
        super().__init__("another program answers")
        self.received = received


class Message(NamedTuple):
    """What the other end has sent.

    Attributes:
        content: What it says, of JSON's types.
        is_proven: Whether it has the key.
    """

    content: Any
    is_proven: bool


def derive_key(purpose: str, *parts: bytes) -> bytes:
    """Returns a key that serves one purpose, made of what both ends know."""
    return hashlib.sha256(b"\n".join([f"tfdist {purpose}".encode(), *parts])).digest()


class SignedConnection:
    """One end of a connection.

    Args:
        connection: A connected socket that does not block.
        key: The key that both ends should have.
        end: `CALLER` or `LISTENER`, which of the two this end is.
        most_bytes: The size of a message, at most.
    """

    def __init__(
        self, connection: socket.socket, key: bytes, end: bytes, *, most_bytes: int = 8192
    ) -> None:
        self._socket = connection
        self._key = key
        self._end, self._other = (end, LISTENER if end == CALLER else CALLER)
        self._most = most_bytes
        self._challenge = secrets.token_hex(16).encode()
        self._challenges = b""  # The caller's and the listener's.
        self._sent = self._received = 0

    async def greet(self) -> None:
        """Exchanges the greetings.

        Raises:
            AnotherProgramError: The other end is another program.
        """
        loop = asyncio.get_running_loop()
        data = b""
        try:
            await loop.sock_sendall(self._socket, _GREETING + self._challenge + b"\n")
            while len(data) < GREETING_BYTES:
                more = await loop.sock_recv(self._socket, GREETING_BYTES - len(data))
                data += more
                if not more or data[: len(_GREETING)] != _GREETING[: len(data)]:
                    raise AnotherProgramError(data)
        except OSError:
            raise AnotherProgramError(data) from None
        theirs = data[len(_GREETING) :]
        if not _CHALLENGE.fullmatch(theirs):
            raise AnotherProgramError(data)
        both = (self._challenge, theirs.strip())
        self._challenges = b" ".join(both if self._end == CALLER else reversed(both))

    async def send(self, content: Any) -> None:
        """Sends a message, of JSON's types, with its proof.

        Raises:
            OSError: The other end has hung up.
        """
        text = json.dumps(content).encode()
        proof = self._proof(self._end, self._sent, text)
        self._sent += 1
        data = _HEAD.pack(len(text), proof) + text
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def receive(self) -> Message:
        """Waits for a message.

        Raises:
            OSError: The other end has hung up, or its message is too long or not JSON.
        """
        size, proof = _HEAD.unpack(await self._read(_HEAD.size))
        if size > self._most:
            raise ConnectionError("a message is too long")
        text = await self._read(size)
        is_proven = hmac.compare_digest(proof, self._proof(self._other, self._received, text))
        self._received += 1
        try:
            return Message(json.loads(text), is_proven)
        except (ValueError, RecursionError):
            raise ConnectionError("a message is not JSON") from None

    async def receive_proven(self) -> Any:
        """Waits for a message of somebody with the key; returns its content.

        Raises:
            OSError: The other end has hung up, or does not have the key.
        """
        content, is_proven = await self.receive()
        if not is_proven:
            raise ConnectionError("it does not have the key")
        return content

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def _proof(self, end: bytes, number: int, text: bytes) -> bytes:
        signed = b"%s %s %d %s" % (end, self._challenges, number, text)
        return hmac.digest(self._key, signed, hashlib.sha256)

    async def _read(self, count: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = b""
        while len(data) < count:
            more = await loop.sock_recv(self._socket, count - len(data))
            if not more:
                raise ConnectionResetError("it hung up")
            data += more
        return data
