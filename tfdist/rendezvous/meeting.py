"""Meets all other tasks before TensorFlow starts, within a deadline.

TensorFlow waits for an absent peer forever, and nothing in the process can
stop it. So the tasks meet first, on their own ports: each listens on its own
address, asks every other task for its name, and has it prove that it knows the cluster,
the job and the job's secret (TFDIST_SECRET), if there is one. A task that has met all
others tells the leader (the chief, or the first task), which starts all together in two
phases, "prepare" and "go", so that none starts TensorFlow while another gives up.

A task that comes too late, or with another cluster, is named by every task
that is present. Only tasks with the right proof count; other connections are
closed.

A worker beside ps tasks may also come when the chief and the ps have started
TensorFlow already: it was lost and started again, and joins them. They cannot
have started without an earlier meeting that this worker took part in.

Timeouts are `asyncio.timeout`, never `asyncio.wait_for`: in Python 3.11 the
latter may lose a cancellation, and the meeting would then never end.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable

from tfdist.cluster.cluster import Cluster
from tfdist.rendezvous.acceptor import Acceptor
from tfdist.rendezvous.agreement import Agreement
from tfdist.rendezvous.faults import KINDS
from tfdist.rendezvous.messages import MAX_BYTES, Hello, decode
from tfdist.rendezvous.questions import Questions
from tfdist.rendezvous.roster import Roster, draw_challenge
from tfdist.rendezvous.sockets import listen, reason
from tfdist.runtime.log import LOGGER
from tfdist.runtime.timeouts import WAIT_SECONDS

_READ_SECONDS = 5.0  # for a caller to say who it is
_PATIENCE_SECONDS = 0.9  # beyond the deadline, for who has answered "prepare"
_JOIN_SECONDS = 3.0  # for which chief and ps are in TensorFlow, before a worker joins them
_MAX_CALLERS = 128


def rendezvous(cluster: Cluster, timeout: float = WAIT_SECONDS, *, job: str = "") -> None:
    """Meets all other tasks of the cluster; returns when all start together.

    Call it before TensorFlow takes the port; nothing listens on the port afterwards.
    A local task, an evaluator outside the cluster, and a task that the launcher
    started again beside running ones (TFDIST_REJOIN=1) meet nobody. A worker that
    something else started again, such as Kubernetes, detects that by itself.

    Args:
        cluster: the expected tasks, and this one.
        timeout: seconds to wait, at most.
        job: text that all tasks must share as well, such as a command line.

    Raises:
        PeerError: a task did not come, its name does not resolve, or a port is taken.
        ConfigError: a task has another cluster, or two processes are the same task.
    """
    if cluster.is_local or cluster.task.address is None:
        return
    if os.environ.get("TFDIST_REJOIN") == "1":
        return
    deadline = time.monotonic() + timeout

    def run() -> None:
        asyncio.run(_Meeting(cluster, timeout, deadline, job).hold())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        run()
        return
    _in_thread(run)  # In a notebook: its thread already runs a loop.


def _in_thread(run: Callable[[], None]) -> None:
    failure: list[BaseException] = []

    def body() -> None:
        try:
            run()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=body, name="rendezvous")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]


class _Meeting:
    def __init__(self, cluster: Cluster, timeout: float, deadline: float, job: str) -> None:
        self._roster = Roster(cluster, job)
        self._timeout = timeout
        self._deadline = deadline
        self._agreement = Agreement(self._roster, deadline)
        self._questions = Questions(self._roster)
        self._acceptor: Acceptor | None = None

    async def hold(self) -> None:
        """Runs the meeting to its end."""
        roster, agreement = self._roster, self._agreement
        leads = roster.name == roster.leader
        decision = asyncio.create_task(agreement.lead() if leads else agreement.follow())
        around = [
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._questions.probe_own_address()),
            *(asyncio.create_task(self._questions.ask_again(p)) for p in roster.peers.values()),
        ]
        try:
            while not decision.done():
                left = self._deadline - time.monotonic()
                if agreement.committed or (agreement.prepared and left > -_PATIENCE_SECONDS):
                    left = max(left, 0.05)
                if self._may_join():
                    LOGGER.info(
                        "%s joins a job that runs: its chief and ps have started TensorFlow",
                        roster.name,
                    )
                    return
                if left <= 0 or (not agreement.committed and roster.faults.stands()):
                    break
                await asyncio.wait({decision}, timeout=min(left, 0.2))
            if not decision.done():
                raise roster.verdict(self._timeout)
            decision.result()
        finally:
            for task in (decision, *around):
                task.cancel()
            await asyncio.gather(decision, *around, return_exceptions=True)

    async def _listen(self) -> None:
        """Binds the port, waiting for it to become free, and answers callers."""
        roster = self._roster
        name, host, port = roster.name, roster.me.host or "", roster.me.port or 0
        while True:
            try:
                listener = await listen(host, port)
                break
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    text = "is taken by another program"
                else:
                    text = f"cannot be used ({reason(error)})"
                roster.faults.see("taken", name, f"port {port} of {name} {text}")
                await asyncio.sleep(0.25)
        roster.faults.clear("taken", name)
        roster.listening = True
        self._acceptor = Acceptor(listener, self._answer, limit=MAX_BYTES, callers=_MAX_CALLERS)
        await self._acceptor.serve()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # An error here: the caller has gone, is too slow or says too much.
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(_READ_SECONDS):
                first = decode(await reader.readline(), KINDS)
                if first is None:
                    return
                challenge, roster = draw_challenge(), self._roster
                own = roster.hello("hello", challenge)
                writer.write(own.signed(roster.key, "answerer", first.challenge).encode())
                await writer.drain()
                hello = decode(await reader.readline(), KINDS)
            if hello is None or hello.challenge != first.challenge or hello.task != first.task:
                return
            if hello.is_proven(roster.key, "caller", challenge):
                await self._receive(hello, reader, writer)
            elif hello.task in roster.peers:
                roster.strangers.add(hello.task)

    async def _receive(
        self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Takes what a task of this job says."""
        roster = self._roster
        if hello.task == roster.name:
            if hello.nonce != roster.nonce:
                roster.see_duplicate()
            return
        peer = roster.peers.get(hello.task)
        if peer is None:
            return
        roster.take_notes(peer, hello)
        if hello.kind == "ready" and roster.name == roster.leader:
            if self._acceptor is not None:
                self._acceptor.keep()
            await self._agreement.hear_member(hello.task, reader, writer)

    def _may_join(self) -> bool:
        """Returns whether this is a worker whose chief and ps have started without it."""
        roster = self._roster
        needed = [p for p in roster.peers.values() if p.task.type in ("chief", "ps")]
        if roster.me.type != "worker" or {p.task.type for p in needed} != {"chief", "ps"}:
            return False
        since = [p.running_since for p in needed]
        now = time.monotonic()
        running = all(start is not None and now - start > _JOIN_SECONDS for start in since)
        return running and roster.listening and not roster.faults
