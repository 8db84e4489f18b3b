"""Starts all tasks together: they report to the leader, and it alone decides.

A task reports again and again over one connection, and the leader answers each report: what is
still wrong, or "go", or "end". It holds an answer back for a moment, so that "go" reaches all at
once. A task whose time is over asks to leave in its report, and obeys the answer: where the leader
has said "go" to others already, it starts too. So none starts while another gives up, unless the
leader or the network is lost at that moment; whoever has started then ends by its watchdog.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time

from tfdist.rendezvous.messages import END, GO, LEAVE, WAIT, Hello, Status
from tfdist.rendezvous.questions import Questions
from tfdist.rendezvous.roster import Roster
from tfdist.rendezvous.signed_connection import SignedConnection

_HOLD_SECONDS = 0.5  # for which the leader holds an answer back
_SILENT_SECONDS = 4.0  # without a report or an answer, after which the other one counts as lost
_FAREWELL_SECONDS = 2.0  # for all to take the leader's decision
_LOOK_SECONDS = 0.02
_FIRST_PAUSE, _PAUSE_SECONDS = 0.05, 0.5  # between two calls of the leader


class StartBarrier:
    """One task's part in starting together.

    Args:
        roster: The tasks that take part.
        questions: How this task calls the others.

    Attributes:
        leaves: Set by this task once its time is over.
        has_ended: Whether the leader has said that waiting is useless.
        is_committed: Whether this task, the leader, has said "go": there is no way back.
    """

    def __init__(self, roster: Roster, questions: Questions) -> None:
        self.leaves = False
        self.has_ended = False
        self._roster = roster
        self._questions = questions
        self.is_committed = False
        self._decided = asyncio.Event()
        self._answer = Status(WAIT)
        self._answer_until = 0.0
        self._members = 0

    async def lead(self) -> None:
        """Starts all tasks together once all have reported."""
        while not self._roster.is_complete():
            await asyncio.sleep(_LOOK_SECONDS)
        self.is_committed = True
        await self._decide(Status(GO))

    async def give_up(self) -> None:
        """Tells all who have reported to this task, the leader, that it gives up."""
        await self._decide(self._roster.answer(END))

    async def _decide(self, answer: Status) -> None:
        self._answer = answer
        self._decided.set()
        until = time.monotonic() + _FAREWELL_SECONDS
        while self._members and time.monotonic() < until:
            await asyncio.sleep(_LOOK_SECONDS)

    async def hear_member(self, hello: Hello, connection: SignedConnection) -> None:
        """Answers the reports of a task to this one, its leader, until one of them is gone.

        Raises:
            OSError: It has hung up.
            TimeoutError: It has fallen silent.
            ValueError: Its message is malformed.
        """
        roster = self._roster
        peer = roster.peers[hello.task]
        self._members += 1
        peer.reports.add(hello.nonce)
        try:
            answer = Status(WAIT)
            while answer.state == WAIT:
                async with asyncio.timeout(_SILENT_SECONDS):
                    report = Status.decode(await connection.receive_proven())
                if len(peer.reports) > 1:
                    roster.see_duplicate(hello.task)
                own = [problem for problem in report.problems if problem.task == hello.task]
                if not any(problem.kind == "taken" for problem in own):
                    roster.faults.clear("taken", hello.task)
                for problem in own:
                    roster.faults.see(*problem)
                if report.state != LEAVE:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_HOLD_SECONDS):
                            await self._decided.wait()
                answer = self._current_answer()
                if report.state == LEAVE and answer.state == WAIT:
                    peer.reports.discard(hello.nonce)  # Before it knows: nobody starts without it.
                    answer = dataclasses.replace(answer, state=END)
                async with asyncio.timeout(_SILENT_SECONDS):
                    await connection.send(answer.encode())
            # To hang up before it has read the answer could take that from it.
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await connection.receive()
        finally:
            self._members -= 1
            peer.reports.discard(hello.nonce)
            if not self.is_committed:
                peer.met = False
                peer.problem = ""

    def _current_answer(self) -> Status:
        """Returns the decision, or what is wrong; to find that out for each task takes too long."""
        if not self._decided.is_set() and time.monotonic() > self._answer_until:
            self._answer = self._roster.answer(WAIT)
            self._answer_until = time.monotonic() + _HOLD_SECONDS / 4
        return self._answer

    async def follow(self) -> None:
        """Reports to the leader; returns when it says "go", or that waiting is useless."""
        roster = self._roster
        leader = roster.peers[roster.leader]
        pause = _FIRST_PAUSE
        while True:
            connection = await self._questions.call(leader, reports=True)
            if connection is not None:
                try:
                    roster.follows = True
                    if await self._report(connection):
                        return
                except (OSError, TimeoutError, ValueError):
                    leader.problem = "does not answer"
                finally:
                    roster.follows = leader.met = False
                    connection.close()
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _PAUSE_SECONDS)

    async def _report(self, connection: SignedConnection) -> bool:
        """Reports until the leader decides; returns whether that is the end of the meeting."""
        roster = self._roster
        while True:
            async with asyncio.timeout(_SILENT_SECONDS):
                report = Status(LEAVE if self.leaves else WAIT, roster.own_problems())
                await connection.send(report.encode())
                answer = Status.decode(await connection.receive_proven())
            if answer.state == GO:
                return True
            roster.hear(answer)
            if answer.state == END:
                self.has_ended = self.leaves or roster.has_faults()
                return self.has_ended
