"""Accepts callers on a listening socket, and leaves none open when it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

Answer = Callable[[socket.socket], Awaitable[None]]


class Acceptor:
    """Answers each caller in its own asyncio task, a limited number at a time.

    Args:
        listener: A listening socket that does not block; closed at the end.
        answer: Answers one caller, whose socket does not block. The socket is closed afterwards,
            unless `answer` has detached it.
        callers: The number of callers at one time, at most. One more closes the
            oldest connection: a flood of connections must not keep the peers out.
    """

    def __init__(self, listener: socket.socket, answer: Answer, *, callers: int) -> None:
        self._listener = listener
        self._answer = answer
        self._most = callers
        self._handlers: set[asyncio.Task[None]] = set()
        self._guests: dict[asyncio.Task[None], None] = {}  # Who may be hung up on, oldest first.

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
        handler = asyncio.create_task(self._handle(client))
        # A task that is cancelled before it begins would not close anything.
        handler.add_done_callback(lambda handler: self._forget(handler, client))
        self._handlers.add(handler)
        self._guests[handler] = None
        if len(self._guests) > self._most:
            oldest = next(iter(self._guests))
            del self._guests[oldest]
            oldest.cancel()

    async def _handle(self, client: socket.socket) -> None:
        await self._answer(client)

    def _forget(self, handler: asyncio.Task[None], client: socket.socket) -> None:
        client.close()
        self._handlers.discard(handler)
        self._guests.pop(handler, None)
