"""Asks the other tasks for their names, and checks this task's own address."""

from __future__ import annotations

import asyncio
import contextlib
import time

from tfdist.rendezvous.messages import MAX_BYTES, Hello, is_http2
from tfdist.rendezvous.roster import Peer, Roster
from tfdist.rendezvous.sockets import connect, reason, resolve
from tfdist.validation import quote

ASK_SECONDS = 2.0  # for one question to one peer
_PAUSE_SECONDS = 1.0  # between two questions to one peer, at most
_MAX_QUESTIONS = 64


class Questions:
    """The questions of one task.

    Args:
        roster: Records the answers.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._questions = asyncio.Semaphore(_MAX_QUESTIONS)

    async def ask_again(self, peer: Peer) -> None:
        """Asks a peer for its name, again and again, until it is cancelled."""
        pause = 0.05
        while True:
            async with self._questions:
                try:
                    async with asyncio.timeout(ASK_SECONDS):
                        await self._ask(peer)
                except TimeoutError:
                    peer.met = False
                    if not peer.endpoints:
                        peer.problem = f"its name {quote(peer.task.host)} does not resolve in time"
                    else:
                        peer.problem = "does not answer"
                        peer.silent = True
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _PAUSE_SECONDS)

    async def _ask(self, peer: Peer) -> None:
        hello, is_proven = await self._question(peer)
        if hello is None:
            peer.met = False
            return
        roster, name = self._roster, str(peer.task)
        where = f"{name} at {peer.task.address}"
        peer.met = is_proven and hello.task == name
        if peer.met:
            for kind in ("foreign", "misplaced"):
                roster.faults.clear(kind, name)
            roster.strangers.discard(name)
            roster.take_notes(peer, hello)
        elif not is_proven:
            peer.problem = f"belongs to another cluster, job or secret, as {hello.task}"
            roster.faults.see("foreign", name, f"{where} {peer.problem}")
        else:
            peer.problem = f"says that it is {hello.task}"
            roster.faults.see("misplaced", name, f"{where} {peer.problem}")

    async def _question(self, peer: Peer) -> tuple[Hello | None, bool]:
        """Asks for a peer's name.

        Returns:
            Its message, and whether it has this job's key; None, with the problem recorded,
            where no task answers.
        """
        host = peer.task.host or ""
        try:
            await self._look_up(peer)
        except OSError as error:
            peer.problem = f"its name {quote(host)} does not resolve ({reason(error)})"
            return None, False
        try:
            connection = await connect(peer.endpoints, MAX_BYTES)
        except OSError as error:
            # The name may resolve to another address later, as a pod's does.
            peer.endpoints = peer.endpoints if _is_literal(host) else []
            peer.problem = f"is not there ({reason(error)})"
            peer.running_since = None
            return None, False
        line, hello, is_proven = await self._roster.introduce(connection, "hello")
        connection[1].close()
        if hello is None:
            peer.problem = "is another program, or has started TensorFlow already"
        if is_http2(line):
            peer.running_since = peer.running_since or time.monotonic()
        elif line:
            peer.running_since = None
        return hello, is_proven

    async def _look_up(self, peer: Peer) -> None:
        """Resolves the peer's name, unless its address is known and has answered.

        Raises:
            OSError: Its name does not resolve.
        """
        host, port = peer.task.host or "", peer.task.port or 0
        if not peer.endpoints:
            peer.endpoints = await resolve(host, port)
        elif peer.silent:
            # A slow name server must leave time to ask the peer.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_SECONDS / 2):
                    peer.endpoints = await resolve(host, port)
        peer.silent = False

    async def probe_own_address(self) -> None:
        """Asks for the name at this task's own address: a second process may have it too."""
        roster = self._roster
        own = Peer(roster.me)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_SECONDS):
                    hello, is_proven = await self._question(own)
                if hello is not None and hello.nonce != roster.nonce:
                    if is_proven and hello.task == roster.name:
                        roster.see_duplicate()
                    elif not roster.listening:
                        who = f"{hello.task} of another cluster"
                        text = f"port {roster.me.port} of {roster.name} is taken by {who}"
                        roster.faults.see("taken", roster.name, text)
            await asyncio.sleep(0.5)


def _is_literal(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()
