"""Starts all tasks together: the leader does so in two phases, "prepare" and "go"."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

from tfdist.rendezvous.messages import MAX_BYTES
from tfdist.rendezvous.questions import ASK_SECONDS
from tfdist.rendezvous.roster import Roster
from tfdist.rendezvous.sockets import Connection, connect, resolve

_PREPARE_SECONDS = 0.6  # for all to answer "prepare"
_FAREWELL_SECONDS = 2.0  # for all to confirm "go"


@dataclass
class _Member:
    """A task that has told the leader that it is ready."""

    writer: asyncio.StreamWriter
    prepared: int = 0
    confirmed: bool = False


class Agreement:
    """One task's part in the agreement to start.

    Args:
        roster: The tasks that take part.
        deadline: The latest time to agree, in seconds of the monotonic clock.

    Attributes:
        prepared: Whether this task has promised to start.
        committed: Whether the start is final: some tasks may have started already.
    """

    def __init__(self, roster: Roster, deadline: float) -> None:
        self.prepared = False
        self.committed = False
        self._roster = roster
        self._deadline = deadline
        self._members: dict[str, _Member] = {}

    async def lead(self) -> None:
        """Starts all tasks together once all are ready."""
        turn = 0
        while True:
            await asyncio.sleep(0.02)
            if not self._roster.ready() or set(self._members) != set(self._roster.peers):
                continue
            turn += 1
            self._tell(f"prepare {turn}")
            end = min(time.monotonic() + _PREPARE_SECONDS, self._deadline)
            while time.monotonic() < end and not self._all_prepared(turn):
                await asyncio.sleep(0.005)
            if self._all_prepared(turn) and not self._roster.faults:
                break
            self._tell("cancel")
            await asyncio.sleep(0.2)
        # From here on there is no way back: some may already have left.
        self.committed = True
        self._tell("go")
        end = time.monotonic() + _FAREWELL_SECONDS
        while time.monotonic() < end and not all(m.confirmed for m in self._members.values()):
            await asyncio.sleep(0.005)

    def _all_prepared(self, turn: int) -> bool:
        members = self._members
        return set(members) == set(self._roster.peers) and all(
            member.prepared == turn for member in members.values()
        )

    def _tell(self, text: str) -> None:
        for member in self._members.values():
            with contextlib.suppress(OSError):
                member.writer.write(text.encode() + b"\n")

    async def hear_member(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Listens to a task that has told this one, its leader, that it is ready."""
        before = self._members.pop(name, None)
        if before is not None:
            before.writer.transport.abort()
        member = self._members[name] = _Member(writer)
        try:
            while line := await reader.readline():
                word, _, turn = line.strip().partition(b" ")
                if word == b"prepared" and turn.isdigit() and len(turn) < 10:
                    member.prepared = int(turn)
                elif word == b"gone":
                    member.confirmed = True
        finally:
            # One that vanishes after "go" has been started or has crashed.
            member.confirmed = True
            if self._members.get(name) is member and not self.committed:
                del self._members[name]

    async def follow(self) -> None:
        """Tells the leader that this task is ready; returns when the leader says "go"."""
        leader = self._roster.peers[self._roster.leader]
        while True:
            await asyncio.sleep(0.02)
            if not self._roster.ready():
                continue
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    endpoints = leader.endpoints or await resolve(
                        leader.task.host or "", leader.task.port or 0
                    )
                    connection = await connect(endpoints, MAX_BYTES)
            except (OSError, TimeoutError):
                await asyncio.sleep(0.2)
                continue
            try:
                if await self._obey(connection):
                    return
            except (OSError, ValueError):
                pass
            finally:
                self.prepared = False
                connection[1].close()
            await asyncio.sleep(0.2)

    async def _obey(self, connection: Connection) -> bool:
        """Obeys the leader's messages; returns True once it says "go"."""
        reader, writer = connection
        _, hello, is_proven = await self._roster.introduce(connection, "ready")
        if hello is None or not is_proven or hello.task != self._roster.leader:
            return False
        while line := await reader.readline():
            word, _, turn = line.strip().partition(b" ")
            if word == b"go":
                self.committed = True
                writer.write(b"gone\n")
                await writer.drain()
                return True
            if word == b"cancel":
                self.prepared = False
            elif word == b"prepare":
                # Past the deadline it is too late to promise anything.
                if self._roster.faults or time.monotonic() >= self._deadline:
                    return False
                self.prepared = True
                writer.write(b"prepared " + turn + b"\n")
        return False
