"""Meets all other tasks before TensorFlow starts, within a deadline.

TensorFlow waits for an absent peer forever, and nothing in the process can stop it. So the tasks
meet first, on their own ports: each listens on its own address and reports to the leader (the
chief, or the first task). The leader calls each task at its address in turn, and starts all
together; until then it tells all who is missing or wrong. Every call proves that both ends know the
cluster, the job and the job's secret (TFDIST_SECRET), if there is one.

A task that comes too late, or with another cluster, is named by every task that is present. Where
the leader itself does not answer, each task names it, and looks for some others itself. Only tasks
with the right proof count; other connections are closed.

A worker of a job with ps tasks may also come when the chief and the ps have started TensorFlow
already: it was lost and started again, and joins them. They cannot have started without an earlier
meeting that this worker took part in.

Timeouts are `asyncio.timeout`, never `asyncio.wait_for`: in Python 3.11 the
latter may lose a cancellation, and the meeting would then never end.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import resource
import socket
import threading
import time
from collections.abc import Callable

from tfdist import __version__
from tfdist.cluster.cluster import Cluster
from tfdist.rendezvous.acceptor import Acceptor
from tfdist.rendezvous.faults import TAKEN_SECONDS
from tfdist.rendezvous.messages import Hello
from tfdist.rendezvous.questions import Questions
from tfdist.rendezvous.roster import Roster
from tfdist.rendezvous.signed_connection import LISTENER, SignedConnection
from tfdist.rendezvous.sockets import listen, reason
from tfdist.rendezvous.start_barrier import StartBarrier
from tfdist.runtime.log import LOGGER
from tfdist.runtime.timeouts import WAIT_SECONDS

_READ_SECONDS = 5.0  # for a caller to say who it is
_PATIENCE_SECONDS = 0.9  # beyond the deadline, for the leader's last answer
_JOIN_SECONDS = 3.0  # for which chief and ps are in TensorFlow, before a worker joins them
_LOOK_SECONDS = 0.5
_TELL_SECONDS = 5.0  # for which a port is taken, before that is told
_MAX_CALLERS = 128  # or two for each task
_OTHER_FILES = 100  # that this process has open


def rendezvous(cluster: Cluster, timeout: float = WAIT_SECONDS, *, job: str = "") -> None:
    """Meets all other tasks of the cluster; returns when all start together.

    Call it before TensorFlow takes the port; nothing listens on the port afterwards.
    A local task, an evaluator outside the cluster, and a task that the launcher
    started again alongside running ones (TFDIST_REJOIN=1) meet nobody. A worker that
    something else started again, such as Kubernetes, detects that by itself.

    Args:
        cluster: The expected tasks, and this one.
        timeout: Seconds to wait, at most.
        job: Text that all tasks must share as well, such as a command line.

    Raises:
        PeerError: A task did not come, its name does not resolve, or a port is taken.
        ConfigError: A task has another cluster, or two processes are the same task.
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
        self._questions = Questions(self._roster)
        self._barrier = StartBarrier(self._roster, self._questions)
        self._acceptor: Acceptor | None = None
        # Of a job of a chief, ps and workers, those that start without a worker that was lost.
        peers = self._roster.peers.values()
        self._starters = [peer for peer in peers if peer.task.type in ("chief", "ps")]
        if {peer.task.type for peer in self._starters} != {"chief", "ps"}:
            self._starters = []

    async def hold(self) -> None:
        """Runs the meeting to its end."""
        roster, barrier, questions = self._roster, self._barrier, self._questions
        if roster.leads:
            _allow_files(_OTHER_FILES + 2 * len(roster.names))
        decision = asyncio.create_task(barrier.lead() if roster.leads else barrier.follow())
        around = [
            asyncio.create_task(self._listen()),
            asyncio.create_task(questions.probe_own_address()),
            asyncio.create_task(questions.ask_all()),
        ]
        try:
            while not decision.done():
                left = self._deadline - time.monotonic()
                if left <= 0 and not roster.leads and roster.follows:
                    barrier.leaves = True
                    left += _PATIENCE_SECONDS
                if barrier.is_committed:
                    left = max(left, 0.05)
                if self._may_join():
                    LOGGER.info(
                        "%s joins a job that runs: its chief and ps have started TensorFlow",
                        roster.name,
                    )
                    return
                if left <= 0 or (not barrier.is_committed and roster.faults.stands()):
                    break
                await asyncio.wait({decision}, timeout=min(left, _LOOK_SECONDS))
            if not decision.done() or barrier.has_ended:
                waited = self._timeout - (self._deadline - time.monotonic())
                error = roster.verdict(min(self._timeout, round(waited)))
                if roster.leads:
                    decision.cancel()
                    await barrier.give_up()
                raise error
            decision.result()
        finally:
            for task in (decision, *around):
                task.cancel()
            await asyncio.gather(decision, *around, return_exceptions=True)

    async def _listen(self) -> None:
        """Binds the port, waiting for it to become free, and answers callers."""
        roster = self._roster
        name, host, port = roster.name, roster.me.host or "", roster.me.port or 0
        tell_at = time.monotonic() + _TELL_SECONDS
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
                if time.monotonic() > tell_at:
                    tell_at = math.inf
                    left = min(TAKEN_SECONDS, self._deadline - time.monotonic())
                    LOGGER.warning(
                        "port %d of %s %s; waiting for it, %.0f s at most", port, name, text, left
                    )
                await asyncio.sleep(0.25)
        roster.faults.clear("taken", name)
        roster.listening = True
        callers = max(_MAX_CALLERS, 2 * len(roster.names))
        self._acceptor = Acceptor(listener, self._answer, callers=callers)
        await self._acceptor.serve()

    async def _answer(self, client: socket.socket) -> None:
        roster = self._roster
        # An error here: the caller has gone, is too slow or its message is malformed.
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            connection = SignedConnection(client, roster.key, LISTENER)
            async with asyncio.timeout(_READ_SECONDS):
                await connection.greet()
                content, is_proven = await connection.receive()
                hello = Hello.decode(content)
                if hello is None:
                    return
                await connection.send(roster.hello().encode())
            if not is_proven:
                if hello.task in roster.peers:
                    roster.strangers.add(hello.task)
            elif hello.task == roster.name:
                if hello.nonce != roster.nonce:
                    roster.see_duplicate(roster.name)
            elif hello.version != __version__:
                return  # Both ends name it: each sees it where it asks.
            elif hello.reports and roster.leads and hello.task in roster.peers:
                if self._acceptor is not None:
                    self._acceptor.keep()
                await self._barrier.hear_member(hello, connection)

    def _may_join(self) -> bool:
        """Returns whether this is a worker whose chief and ps have started without it."""
        roster = self._roster
        if roster.me.type != "worker" or not self._starters:
            return False
        since = [peer.running_since for peer in self._starters]
        now = time.monotonic()
        running = all(start is not None and now - start > _JOIN_SECONDS for start in since)
        return running and roster.listening and not roster.faults


def _allow_files(needed: int) -> None:
    """Raises this process' limit of open files where so many callers need it, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
