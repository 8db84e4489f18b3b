"""Accepts callers on a listening socket, and leaves none open when it ends.

`asyncio.start_server` leaks the sockets that it has accepted and not yet
wrapped when it is closed (its transport asserts that the server is open), so
this module does not use it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Acceptor:
    """Answers each caller in a task of its own, a limited number at a time.

    Args:
        listener: A listening socket that does not block; closed at the end.
        answer: Answers one caller. It need not close the connection.
        limit: Bytes of a line, at most.
        callers: The number of callers at one time, at most. One more closes the
            oldest connection: a flood of connections must not keep the peers out.
    """

    def __init__(
        self, listener: socket.socket, answer: Answer, *, limit: int, callers: int
    ) -> None:
        self._listener = listener
        self._answer = answer
        self._limit = limit
        self._most = callers
        self._handlers: set[asyncio.Task[None]] = set()
        self._guests: dict[asyncio.Task[None], None] = {}  # Who may be hung up on, oldest first.
        self._waiting: set[socket.socket] = set()  # Not yet wrapped in a transport.

    async def serve(self) -> None:
        """Accepts callers until it is cancelled; then closes all connections."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listener, self._accept)
        try:
            await asyncio.Event().wait()
        finally:
            loop.remove_reader(self._listener)
            self._listener.close()
            handlers = list(self._handlers)
            for handler in handlers:
                handler.cancel()
            await asyncio.gather(*handlers, return_exceptions=True)
            for client in self._waiting:
                client.close()

    def keep(self) -> None:
        """Keeps the caller that the running task answers from being disconnected."""
        current = asyncio.current_task()
        if current is not None:
            self._guests.pop(current, None)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # The caller has gone already.
        client.setblocking(False)
        self._waiting.add(client)
        handler = asyncio.create_task(self._handle(client))
        self._handlers.add(handler)
        self._guests[handler] = None
        handler.add_done_callback(self._forget)
        if len(self._guests) > self._most:
            oldest = next(iter(self._guests))
            del self._guests[oldest]
            oldest.cancel()

    def _forget(self, handler: asyncio.Task[None]) -> None:
        self._handlers.discard(handler)
        self._guests.pop(handler, None)

    async def _handle(self, client: socket.socket) -> None:
        self._waiting.discard(client)
        try:
            reader, writer = await asyncio.open_connection(sock=client, limit=self._limit)
        except BaseException:
            client.close()
            raise
        try:
            await self._answer(reader, writer)
            writer.close()
        except BaseException:
            writer.transport.abort()
            raise
