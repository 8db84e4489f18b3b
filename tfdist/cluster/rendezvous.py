"""Meeting all other tasks before TensorFlow starts, within a deadline.

TensorFlow waits for an absent peer for ever, and nothing in the process can
stop it. So the tasks meet first, on their own ports: each listens on its own
address, asks every other one who it is, and compares a hash of the cluster and
the job. Who has met everyone tells the leader (the chief, or the first task),
which starts all together in two phases, "prepare" and "go", so that none
leaves for TensorFlow while another gives up.

A task that comes too late, or with another cluster, is named on each task that
is there. Only tasks with the right hash count; other callers are hung up on.

A worker beside ps tasks may also come when the chief and the ps are in
TensorFlow already: it was lost and started again, and joins them. They cannot
be so without a meeting that had this worker in it.

Timeouts are `asyncio.timeout`, never `asyncio.wait_for`: in Python 3.11 the
latter may lose a cancellation, and the meeting would then never end.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from tfdist.cluster.cluster import Cluster, Task
from tfdist.cluster.door import Door
from tfdist.cluster.faults import HOPELESS, KINDS, Faults
from tfdist.cluster.messages import quote
from tfdist.cluster.sockets import Connection, Place, connect, listen, resolve
from tfdist.cluster.wire import MAX_BYTES, Hello, decode, is_http2
from tfdist.errors import ConfigError, PeerError, TfdistError

DEFAULT_TIMEOUT = 300.0

_ASK_SECONDS = 2.0  # for one question to one peer
_PAUSE_SECONDS = 1.0  # between two questions to one peer, at most
_READ_SECONDS = 5.0  # for a caller to say who it is
_PREPARE_SECONDS = 0.6  # for all to answer "prepare"
_PATIENCE_SECONDS = 0.9  # beyond the deadline, for who has answered "prepare"
_FAREWELL_SECONDS = 2.0  # for all to confirm "go"
_JOIN_SECONDS = 3.0  # for which chief and ps are in TensorFlow, before a worker joins them
_MAX_CALLERS = 128
_MAX_QUESTIONS = 64
_MAX_NAMED = 8


def rendezvous(cluster: Cluster, timeout: float = DEFAULT_TIMEOUT, *, job: str = "") -> None:
    """Meets all other tasks of the cluster; returns when all leave together.

    Call it before TensorFlow is imported, and let TensorFlow have the port
    afterwards: nothing listens on it any more. A local task, an evaluator
    outside the cluster, and a task that the launcher started again beside
    running ones (TFDIST_REJOIN=1) have no one to meet. A worker that others
    started again, such as Kubernetes, finds that out by itself.

    Args:
        cluster: who should come, and who we are.
        timeout: seconds to wait, at most.
        job: text that all tasks must share as well, such as a command line.

    Raises:
        PeerError: a task did not come, its name does not resolve, or a port is taken.
        ConfigError: a task has another cluster, or two are the same one.
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


@dataclass
class _Peer:
    """What is known about another task."""

    task: Task
    met: bool = False
    problem: str = "has not answered"
    missing: tuple[str, ...] = ()
    places: list[Place] = field(default_factory=list)
    running_since: float | None = None  # in TensorFlow, by its port


@dataclass
class _Member:
    """A task that has told the leader that it is ready."""

    writer: asyncio.StreamWriter
    prepared: int = 0
    confirmed: bool = False


class _Meeting:
    def __init__(self, cluster: Cluster, timeout: float, deadline: float, job: str) -> None:
        self._me = cluster.task
        self._name = str(cluster.task)
        self._names = [str(task) for task in cluster.tasks]
        self._peers = {str(t): _Peer(t) for t in cluster.tasks if t != cluster.task}
        self._leader = self._names[0]
        self._timeout = timeout
        self._deadline = deadline
        text = f"{cluster.fingerprint()}\n{job}"
        self._hash = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
        self._nonce = secrets.token_hex(8)
        self._faults = Faults(self._names)
        self._strangers: dict[str, str] = {}  # task that a foreign caller claims to be: its hash
        self._members: dict[str, _Member] = {}
        self._door: Door | None = None
        self._listening = False
        self._prepared = False
        self._committed = False
        self._questions = asyncio.Semaphore(_MAX_QUESTIONS)

    async def hold(self) -> None:
        """Holds the meeting to its end."""
        decide = self._lead() if self._name == self._leader else self._follow()
        decision = asyncio.create_task(decide)
        around = [self._spawn(self._listen()), self._spawn(self._probe_own_address())]
        around += [self._spawn(self._ask_again(peer)) for peer in self._peers.values()]
        try:
            while not decision.done():
                left = self._deadline - time.monotonic()
                if self._committed or (self._prepared and left > -_PATIENCE_SECONDS):
                    left = max(left, 0.05)
                if self._may_join():
                    print(
                        f"tfdist: {self._name} joins a job that runs: its chief and ps are in "
                        "TensorFlow already",
                        file=sys.stderr,
                        flush=True,
                    )
                    return
                if left <= 0 or (not self._committed and self._faults.stands()):
                    break
                await asyncio.wait({decision}, timeout=min(left, 0.2))
            if not decision.done():
                raise self._verdict()
            decision.result()
        finally:
            for task in (decision, *around):
                task.cancel()
            await asyncio.gather(decision, *around, return_exceptions=True)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)

    # Listening.

    async def _listen(self) -> None:
        """Takes the port, waiting for it to become free, and answers callers."""
        host, port = self._me.host or "", self._me.port or 0
        while True:
            try:
                listener = await listen(host, port)
                break
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    text = "is taken by another program"
                else:
                    text = f"cannot be used ({_reason(error)})"
                self._faults.see("taken", self._name, f"port {port} of {self._name} {text}")
                await asyncio.sleep(0.25)
        self._faults.clear("taken", self._name)
        self._listening = True
        self._door = Door(listener, self._answer, limit=MAX_BYTES, callers=_MAX_CALLERS)
        await self._door.serve()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # An error here: the caller has gone, is too slow or says too much.
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(_READ_SECONDS):
                line = await reader.readline()
            hello = decode(line, KINDS)
            if hello is not None:
                writer.write(self._hello("hello"))
                await self._receive(hello, reader, writer)
                async with asyncio.timeout(_ASK_SECONDS):
                    await writer.drain()

    async def _receive(
        self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if hello.hash != self._hash:
            if hello.task in self._peers:
                self._strangers[hello.task] = hello.hash
            return
        if hello.task == self._name:
            if hello.nonce != self._nonce:
                self._see_duplicate()
            return
        peer = self._peers.get(hello.task)
        if peer is None:
            return
        self._take_notes(peer, hello)
        if hello.kind == "ready" and self._name == self._leader:
            if self._door is not None:
                self._door.keep()
            await self._hear_member(hello.task, reader, writer)

    # Asking.

    async def _ask_again(self, peer: _Peer) -> None:
        pause = 0.05
        while True:
            async with self._questions:
                try:
                    async with asyncio.timeout(_ASK_SECONDS):
                        await self._ask(peer)
                except TimeoutError:
                    peer.met = False
                    if not peer.places:
                        peer.problem = f"its name {quote(peer.task.host)} does not resolve in time"
                    else:
                        peer.problem = "does not answer"
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _PAUSE_SECONDS)

    async def _ask(self, peer: _Peer) -> None:
        hello = await self._question(peer)
        if hello is None:
            peer.met = False
            return
        name = str(peer.task)
        where = f"{name} at {peer.task.address}"
        peer.met = hello.hash == self._hash and hello.task == name
        if peer.met:
            for kind in ("foreign", "misplaced"):
                self._faults.clear(kind, name)
            self._strangers.pop(name, None)
            self._take_notes(peer, hello)
        elif hello.hash != self._hash:
            peer.problem = f"belongs to another cluster or job, as {hello.task}"
            self._faults.see("foreign", name, f"{where} {peer.problem}")
        else:
            peer.problem = f"says that it is {hello.task}"
            self._faults.see("misplaced", name, f"{where} {peer.problem}")

    async def _question(self, peer: _Peer) -> Hello | None:
        """Asks who is there; None, with the problem noted, when no task of tfdist is."""
        host, port = peer.task.host or "", peer.task.port or 0
        if not peer.places:
            try:
                peer.places = await resolve(host, port)
            except OSError as error:
                peer.problem = f"its name {quote(host)} does not resolve ({_reason(error)})"
                return None
        try:
            connection = await connect(peer.places, MAX_BYTES)
        except OSError as error:
            # The name may come to stand for another address, as a pod's does.
            peer.places = peer.places if _is_literal(host) else []
            peer.problem = f"is not there ({_reason(error)})"
            peer.running_since = None
            return None
        answer = await self._introduce(connection, "hello")
        connection[1].transport.abort()
        hello = decode(answer, KINDS)
        if hello is None:
            peer.problem = "is another program, or has started TensorFlow already"
        if is_http2(answer):
            peer.running_since = peer.running_since or time.monotonic()
        elif answer:
            peer.running_since = None
        return hello

    async def _introduce(self, connection: Connection, kind: str) -> bytes:
        """Says who we are; returns the answer, empty where there is none."""
        reader, writer = connection
        try:
            writer.write(self._hello(kind))
            return await reader.readline()
        except (OSError, ValueError):
            return b""
        except BaseException:
            writer.transport.abort()
            raise

    async def _probe_own_address(self) -> None:
        """Asks who is at our own address: a second process may be the same task."""
        own = _Peer(self._me)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ASK_SECONDS):
                    hello = await self._question(own)
                if hello is not None and hello.nonce != self._nonce:
                    if hello.hash == self._hash and hello.task == self._name:
                        self._see_duplicate()
                    elif not self._listening:
                        who = f"{hello.task} of another cluster"
                        text = f"port {self._me.port} of {self._name} is taken by {who}"
                        self._faults.see("taken", self._name, text)
            await asyncio.sleep(0.5)

    # Deciding.

    def _ready(self) -> bool:
        met = all(peer.met for peer in self._peers.values())
        return self._listening and met and not self._faults

    def _may_join(self) -> bool:
        """Whether this is a worker whose chief and ps have started without it."""
        needed = [p for p in self._peers.values() if p.task.type in ("chief", "ps")]
        if self._me.type != "worker" or {p.task.type for p in needed} != {"chief", "ps"}:
            return False
        since = [p.running_since for p in needed]
        now = time.monotonic()
        running = all(start is not None and now - start > _JOIN_SECONDS for start in since)
        return running and self._listening and not self._faults

    async def _lead(self) -> None:
        """Starts all together once everyone is ready."""
        turn = 0
        while True:
            await asyncio.sleep(0.02)
            if not self._ready() or set(self._members) != set(self._peers):
                continue
            turn += 1
            self._tell(f"prepare {turn}")
            end = min(time.monotonic() + _PREPARE_SECONDS, self._deadline)
            while time.monotonic() < end and not self._all_prepared(turn):
                await asyncio.sleep(0.005)
            if self._all_prepared(turn) and not self._faults:
                break
            self._tell("cancel")
            await asyncio.sleep(0.2)
        # From here on there is no way back: some may already have left.
        self._committed = True
        self._tell("go")
        end = time.monotonic() + _FAREWELL_SECONDS
        while time.monotonic() < end and not all(m.confirmed for m in self._members.values()):
            await asyncio.sleep(0.005)

    def _all_prepared(self, turn: int) -> bool:
        members = self._members
        return set(members) == set(self._peers) and all(
            member.prepared == turn for member in members.values()
        )

    def _tell(self, text: str) -> None:
        for member in self._members.values():
            with contextlib.suppress(OSError):
                member.writer.write(text.encode() + b"\n")

    async def _hear_member(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
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
            if self._members.get(name) is member and not self._committed:
                del self._members[name]

    async def _follow(self) -> None:
        """Tells the leader that we are ready, and leaves when it says so."""
        leader = self._peers[self._leader]
        while True:
            await asyncio.sleep(0.02)
            if not self._ready():
                continue
            try:
                async with asyncio.timeout(_ASK_SECONDS):
                    places = leader.places or await resolve(
                        leader.task.host or "", leader.task.port or 0
                    )
                    connection = await connect(places, MAX_BYTES)
            except (OSError, TimeoutError):
                await asyncio.sleep(0.2)
                continue
            try:
                if await self._obey(connection):
                    return
            except (OSError, ValueError):
                pass
            finally:
                self._prepared = False
                connection[1].close()
            await asyncio.sleep(0.2)

    async def _obey(self, connection: Connection) -> bool:
        """Does what the leader says; True once it says "go"."""
        reader, writer = connection
        hello = decode(await self._introduce(connection, "ready"), KINDS)
        if hello is None or hello.hash != self._hash or hello.task != self._leader:
            return False
        while line := await reader.readline():
            word, _, turn = line.strip().partition(b" ")
            if word == b"go":
                self._committed = True
                writer.write(b"gone\n")
                await writer.drain()
                return True
            if word == b"cancel":
                self._prepared = False
            elif word == b"prepare":
                # Past the deadline it is too late to promise anything.
                if self._faults or time.monotonic() >= self._deadline:
                    return False
                self._prepared = True
                writer.write(b"prepared " + turn + b"\n")
        return False

    # Faults, and what to say about them.

    def _hello(self, kind: str) -> bytes:
        missing = tuple(name for name, peer in self._peers.items() if not peer.met)
        faults = self._faults.own()
        return Hello(kind, self._hash, self._name, self._nonce, faults, missing).encode()

    def _take_notes(self, peer: _Peer, hello: Hello) -> None:
        peer.missing = hello.missing
        self._faults.hear(hello)

    def _see_duplicate(self) -> None:
        self._faults.see("duplicate", self._name, f"two processes are {self._name}")

    def _verdict(self) -> TfdistError:
        """Returns the error that names all that is wrong, in one line."""
        faults = self._faults.gravest()
        problems = {name: text for name, (_, text) in faults.items()}
        hopeless = any(kind in HOPELESS for kind, _ in faults.values())
        for name, peer in self._peers.items():
            if name in problems or peer.met:
                continue
            problem = peer.problem
            if name in self._strangers:
                problem = "belongs to another cluster or job: it called with another hash"
                hopeless = True
            problems[name] = f"{name} at {peer.task.address} {problem}"
        for name, peer in self._peers.items():
            if not problems and peer.missing:
                problems[name] = f"{name} does not reach {', '.join(peer.missing[:_MAX_NAMED])}"
        if not problems:
            problems[""] = "all are there, but the start was not agreed in time"
        named = [problems[name] for name in sorted(problems, key=self._order)]
        if len(named) > _MAX_NAMED:
            named[_MAX_NAMED:] = [f"and {len(named) - _MAX_NAMED} more"]
        text = f"rendezvous: {self._name} gave up after {self._timeout:g} s: {'; '.join(named)}"
        if hopeless:
            text = text.replace(f" after {self._timeout:g} s", "", 1)
            return ConfigError(f"{text}; give every task the same cluster and an index of its own")
        return PeerError(f"{text}; start the missing tasks, or wait longer")

    def _order(self, name: str) -> int:
        return self._names.index(name) if name in self._names else len(self._names)


def _is_literal(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _reason(error: OSError) -> str:
    # asyncio puts the address into the text; the number alone says what happened.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
