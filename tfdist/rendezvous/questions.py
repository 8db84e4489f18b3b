"""Calls other tasks at their addresses, and has them prove their names."""

from __future__ import annotations

import asyncio
import contextlib
import time

from tfdist import __version__
from tfdist.rendezvous.messages import Hello, is_http2
from tfdist.rendezvous.roster import Peer, Roster
from tfdist.rendezvous.signed_connection import CALLER, AnotherProgramError, SignedConnection
from tfdist.rendezvous.sockets import connect, reason, resolve
from tfdist.validation import quote

ASK_SECONDS = 2.0  # for one question to one peer
_FIRST_PAUSE, _PAUSE_SECONDS = 0.05, 1.0  # between two questions to one peer
_REPORT_SECONDS = 3.0  # for a peer that has answered to report, before it is asked again
_MAX_QUESTIONS = 64
_LOOKED_FOR = 8


class Questions:
    """The questions of one task.

    Args:
        roster: Records the answers.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._questions = asyncio.Semaphore(_MAX_QUESTIONS)

    async def ask_all(self) -> None:
        """Asks the other tasks for their names, again and again, until it is cancelled.

        The leader asks all that have not come. Another task asks nobody, but where the leader is
        not there it looks for the tasks that come after it, and a worker for all ps, which may have
        started without it.
        """
        roster = self._roster
        if roster.leads:
            await asyncio.gather(*map(self._ask_again, roster.peers.values()))
            return
        own = roster.names.index(roster.name)
        following = [*roster.names[own + 1 :], *roster.names[:own]]
        wanted = [name for name in following if name != roster.leader][:_LOOKED_FOR]
        if roster.me.type == "worker":
            wanted += [name for name in following if name.startswith("ps/")]
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            if roster.peers[roster.leader].away:
                await asyncio.gather(*(self._ask(roster.peers[name]) for name in set(wanted)))

    async def _ask_again(self, peer: Peer) -> None:
        pause, again_at = _FIRST_PAUSE, 0.0
        while True:
            # One that has answered is about to report.
            if not peer.met or (not peer.reports and time.monotonic() > again_at):
                await self._ask(peer)
                again_at = time.monotonic() + _REPORT_SECONDS
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _PAUSE_SECONDS)

    async def _ask(self, peer: Peer) -> None:
        async with self._questions:
            connection = await self.call(peer)
        if connection is not None:
            connection.close()

    async def call(self, peer: Peer, *, reports: bool = False) -> SignedConnection | None:
        """Calls a peer, and has it prove its name.

        Args:
            peer: The peer; records how that went.
            reports: Whether this task has more to say than its name.

        Returns:
            The connection; None, with the problem recorded, where it is not that task of this job.
        """
        try:
            async with asyncio.timeout(ASK_SECONDS):
                answer = await self._question(peer, reports)
        except TimeoutError:
            peer.met = peer.away = False
            if not peer.endpoints:
                host = quote(peer.task.host)
                peer.problem = f"is not found: the name {host} does not resolve in time"
            else:
                peer.problem = "does not answer"
                peer.silent = True
            return None
        peer.away = answer is None
        if answer is None:
            peer.met = False
            return None
        connection, hello, is_proven = answer
        if self._take(peer, hello, is_proven):
            return connection
        connection.close()
        return None

    def _take(self, peer: Peer, hello: Hello, is_proven: bool) -> bool:
        """Records who answers at a peer's address; returns whether it is the peer."""
        roster, name = self._roster, str(peer.task)
        where = f"{name} at {peer.task.address}"
        is_same = hello.version == __version__
        peer.met = is_proven and is_same and hello.task == name
        if peer.met:
            for kind in ("version", "foreign", "misplaced"):
                roster.faults.clear(kind, name)
            roster.strangers.discard(name)
            if peer.reports and hello.nonce not in peer.reports:
                roster.see_duplicate(name)
        elif not is_same:
            peer.problem = f"has tfdist {hello.version}, and {roster.name} {__version__}"
            roster.faults.see("version", name, f"{where} {peer.problem}")
        elif not is_proven:
            peer.problem = f"belongs to another cluster, job or secret, as {hello.task}"
            roster.faults.see("foreign", name, f"{where} {peer.problem}")
        else:
            peer.problem = f"answers as {hello.task}"
            roster.faults.see("misplaced", name, f"{where} {peer.problem}")
        return peer.met

    async def _question(
        self, peer: Peer, reports: bool
    ) -> tuple[SignedConnection, Hello, bool] | None:
        """Asks for a peer's name.

        Returns:
            The connection, its name, and whether it has this job's key; None, with the problem
            recorded, where no task answers.
        """
        host = peer.task.host or ""
        try:
            await self._look_up(peer)
        except OSError as error:
            peer.problem = f"is not found: the name {quote(host)} does not resolve"
            peer.problem += f" ({reason(error)})"
            return None
        try:
            client = await connect(peer.endpoints)
        except OSError as error:
            # The name may resolve to another address later, as a pod's does.
            peer.endpoints = peer.endpoints if _is_literal(host) else []
            peer.problem = f"is not there ({reason(error)})"
            peer.running_since = None
            return None
        connection = SignedConnection(client, self._roster.key, CALLER)
        hello, is_ours = None, False
        try:
            await connection.greet()
            await connection.send(self._roster.hello(reports=reports).encode())
            content, is_proven = await connection.receive()
            hello = Hello.decode(content)
        except AnotherProgramError as error:
            if is_http2(error.received):
                peer.running_since = peer.running_since or time.monotonic()
            elif error.received:
                peer.running_since = None
            is_ours = error.received.startswith(b"tfdist/")
        except OSError:
            pass
        finally:
            if hello is None:
                connection.close()
        if is_ours:
            peer.problem = f"has another version of tfdist than {self._roster.name}, {__version__}"
            where = f"{peer.task} at {peer.task.address}"
            self._roster.faults.see("version", str(peer.task), f"{where} {peer.problem}")
            return None
        if hello is None:
            peer.problem = "is another program, or has started TensorFlow already"
            return None
        peer.running_since = None
        return connection, hello, is_proven

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
        """Asks for the name at this task's own address: a second process may have it too.

        Of other tasks with a port, the leader sees this itself.
        """
        roster = self._roster
        own = Peer(roster.me)
        while True:
            if roster.leads or not roster.listening:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ASK_SECONDS):
                        self._judge_own(await self._question(own, reports=False))
            await asyncio.sleep(0.5)

    def _judge_own(self, answer: tuple[SignedConnection, Hello, bool] | None) -> None:
        if answer is None:
            return
        roster = self._roster
        connection, hello, is_proven = answer
        connection.close()
        if hello.nonce == roster.nonce:
            return
        if is_proven and hello.task == roster.name:
            roster.see_duplicate(roster.name)
        elif not roster.listening:
            who = f"{hello.task} of another cluster"
            text = f"port {roster.me.port} of {roster.name} is taken by {who}"
            roster.faults.see("taken", roster.name, text)


def _is_literal(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()
