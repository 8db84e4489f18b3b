from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import re
import resource
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tfdist import __version__
from tfdist.cluster import Cluster
from tfdist.errors import ConfigError, PeerError, TfdistError
from tfdist.launcher.ports import free_ports
from tfdist.rendezvous import faults, meeting
from tfdist.rendezvous.meeting import rendezvous
from tfdist.rendezvous.messages import END, GO, LEAVE, WAIT, Hello, Problem, Status
from tfdist.rendezvous.roster import Roster
from tfdist.rendezvous.signed_connection import CALLER, LISTENER, SignedConnection

SOON = 60.0  # long enough for a busy machine; a meeting takes a fraction of a second
LATE = 2.0  # for meetings that cannot succeed


def spec(count: int, **more: list[str]) -> dict[str, list[str]]:
    ports = iter(free_ports(count))
    return {"worker": [f"127.0.0.1:{port}" for port in ports], **more}


def meet(
    clusters: list[Cluster], timeout: float, jobs: list[str] | None = None
) -> list[TfdistError | None]:
    """Holds a meeting of these tasks; returns how it ended for each."""

    def one(cluster: Cluster, job: str) -> TfdistError | None:
        try:
            rendezvous(cluster, timeout, job=job)
        except TfdistError as error:
            return error
        return None

    with concurrent.futures.ThreadPoolExecutor(len(clusters)) as pool:
        return list(pool.map(one, clusters, jobs or [""] * len(clusters)))


def tasks(jobs: dict[str, list[str]], *indices: int) -> list[Cluster]:
    return [Cluster.from_cluster_spec(jobs, "worker", index) for index in indices]


def ports_of(jobs: dict[str, list[str]]) -> list[int]:
    return [int(a.rpartition(":")[2]) for members in jobs.values() for a in members]


def assert_free(jobs: dict[str, list[str]]) -> None:
    for port in ports_of(jobs):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A listening socket of another program, which answers like a web server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def serve() -> None:
            server.settimeout(0.1)
            while not stop.is_set():
                try:
                    client, _ = server.accept()
                except OSError:
                    continue
                with client:
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield server
        stop.set()
        thread.join()


# 24: tasks are called while they leave, which has cost a lost cancellation before.
@pytest.mark.parametrize("count", [1, 2, 5, 24])
def test_all_meet_and_leave_their_ports(count: int, capfd: pytest.CaptureFixture[str]) -> None:
    jobs = spec(count)
    assert meet(tasks(jobs, *range(count)), SOON) == [None] * count
    assert capfd.readouterr().err == ""
    assert_free(jobs)


def test_a_chief_and_ps_meet_too() -> None:
    chief, ps, worker = (f"127.0.0.1:{port}" for port in free_ports(3))
    jobs = {"chief": [chief], "ps": [ps], "worker": [worker]}
    clusters = [Cluster.from_cluster_spec(jobs, role, 0) for role in jobs]
    assert meet(clusters, SOON) == [None] * 3


def test_who_has_no_one_to_meet_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    rendezvous(Cluster.local(), SOON)
    rendezvous(Cluster.from_cluster_spec(spec(2), "evaluator", 0), SOON)
    monkeypatch.setenv("TFDIST_REJOIN", "1")
    rendezvous(Cluster.from_cluster_spec(spec(2), "worker", 0), SOON)


@pytest.mark.parametrize("absent", [0, 2])
def test_an_absent_task_is_named_on_every_other(absent: int) -> None:
    jobs = spec(3)
    there = [index for index in range(3) if index != absent]
    for index, error in zip(there, meet(tasks(jobs, *there), LATE), strict=True):
        assert isinstance(error, PeerError)
        address = jobs["worker"][absent]
        named = f"worker/{absent} at {address} is not there (Connection refused)"
        text = f"rendezvous: worker/{index} gave up after 2 s: {named}; "
        assert str(error) == text + "start the missing tasks, or wait longer"
    assert_free(jobs)


def test_all_absent_tasks_are_named() -> None:
    (error,) = meet(tasks(spec(4), 2), LATE)
    assert all(f"worker/{index} at" in str(error) for index in (0, 1, 3))


@pytest.mark.parametrize("foreign", [0, 2])
def test_a_task_of_another_cluster_is_named_on_every_task(foreign: int) -> None:
    jobs = spec(3)
    other = {**jobs, "evaluator": ["127.0.0.1:1"]}
    clusters = tasks(jobs, 0, 1, 2)
    clusters[foreign] = Cluster.from_cluster_spec(other, "worker", foreign)
    errors = meet(clusters, LATE)
    for index, error in enumerate(errors):
        assert isinstance(error, ConfigError)
        if index != foreign:
            assert f"worker/{foreign} at {jobs['worker'][foreign]} belongs to another" in str(error)


def test_another_job_is_another_cluster() -> None:
    errors = meet(tasks(spec(2), 0, 1), LATE, jobs=["a", "b"])
    assert all(isinstance(error, ConfigError) for error in errors)


def test_a_foreign_task_at_another_address_is_known_by_its_call() -> None:
    jobs = spec(3)
    (elsewhere,) = free_ports(1)
    moved = {"worker": [*jobs["worker"][:2], f"127.0.0.1:{elsewhere}"]}
    clusters = [*tasks(jobs, 0, 1), *tasks(moved, 2)]
    errors = meet(clusters, LATE)
    # Who only hears of it cannot tell it from a stranger, or from a task that is about to end.
    for error in errors[:2]:
        assert isinstance(error, PeerError)
        assert "worker/2" in str(error) and "of another cluster, job or secret" in str(error)
    assert isinstance(errors[2], ConfigError)
    assert "worker/0 at" in str(errors[2]) and "belongs to another cluster" in str(errors[2])


def test_two_tasks_with_one_index_are_named_on_every_task() -> None:
    errors = meet(tasks(spec(3), 0, 1, 1, 2), LATE)
    for error in errors:
        assert isinstance(error, ConfigError)
        assert "two processes are worker/1" in str(error)
    assert_free(spec(3))


def test_a_taken_port_is_named_on_every_task(taken: socket.socket) -> None:
    jobs = spec(2)
    port = taken.getsockname()[1]
    jobs["worker"].append(f"127.0.0.1:{port}")
    errors = meet(tasks(jobs, 0, 1, 2), LATE)
    for error in errors:
        assert isinstance(error, PeerError)
        assert f"port {port} of worker/2 is taken by another program" in str(error)


def test_a_port_that_stays_taken_ends_the_meeting_early_and_is_told_before(
    taken: socket.socket, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In pods the whole wait is half an hour."""
    monkeypatch.setattr(faults, "TAKEN_SECONDS", 2.0)
    monkeypatch.setattr(meeting, "TAKEN_SECONDS", 2.0)
    monkeypatch.setattr(meeting, "_TELL_SECONDS", 0.3)
    jobs = spec(2)
    port = taken.getsockname()[1]
    jobs["worker"].append(f"127.0.0.1:{port}")
    line = f"port {port} of worker/2 is taken by another program"
    for index, error in enumerate(meet(tasks(jobs, 0, 1, 2), 20 * SOON)):
        assert isinstance(error, PeerError)
        start = rf"rendezvous: worker/{index} gave up after \d+ s: "
        assert re.fullmatch(
            rf"{start}{line}; end that program, or give the task another port", str(error)
        )
    assert capfd.readouterr().err.count(f"{line}; waiting for it, 2 s at most\n") == 1


def test_a_port_that_becomes_free_is_taken_then() -> None:
    jobs = spec(2)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", ports_of(jobs)[1]))
        timer = threading.Timer(0.5, holder.close)
        timer.start()
        assert meet(tasks(jobs, 0, 1), SOON) == [None, None]
        timer.join()


def test_a_name_that_does_not_resolve_is_named() -> None:
    jobs = spec(2)
    jobs["worker"].append("no-such-host.invalid:2222")
    for error in meet(tasks(jobs, 0, 1), LATE):
        assert isinstance(error, PeerError)
        assert "worker/2 at no-such-host.invalid:2222 is not found: the name" in str(error)
        assert "\n" not in str(error)


GREETING = b"tfdist/4 " + b"c" * 32 + b"\n"
GARBAGE = [
    b"",
    b"\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x00" * 4096,
    b"x" * (4 * 8192),
    b"tfdist/2 " + b"c" * 32 + b"\n",
    GREETING,
    GREETING + b"\xff" * 4096,
    GREETING + b"\x00\x00\x13\x88" + b"p" * 32 + b"[" * 5000,
    GREETING + b"\x00\x00\x00\x02" + b"p" * 32 + b"{}",
    GREETING + b"\x00\x00\x00\x26" + b"p" * 32 + b'["worker/1", "0123456789abcdef", true]',
    b"tfdist/3 " + b"c" * 32 + b"\n",
]


@contextlib.contextmanager
def silence(host: str, port: int) -> Iterator[None]:
    """An address that packets vanish at: its queue of connections is full, and nobody takes any."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(socket.create_server((host, port), backlog=0))
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex((host, port))
        yield


def test_a_name_that_stands_for_a_new_address_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, port = free_ports(2)
    jobs = {"worker": [f"127.0.0.1:{mine}", f"pod-1.job:{port}"]}
    now_at = ["127.0.0.2"]  # Of the pod that was there before; nobody refuses for it.
    look_up = socket.getaddrinfo

    def name_server(host: str, *rest: object, **options: object) -> object:
        return look_up(now_at[0] if host == "pod-1.job" else host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", name_server)
    with silence("127.0.0.2", port), concurrent.futures.ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(rendezvous, cluster, 15.0) for cluster in tasks(jobs, 0)]
        time.sleep(1.0)
        now_at[0] = "127.0.0.1"
        ends += [pool.submit(rendezvous, cluster, 15.0) for cluster in tasks(jobs, 1)]
        began = time.monotonic()
        assert [end.result() for end in ends] == [None, None]
        assert time.monotonic() - began < 10.0


def test_strangers_neither_start_nor_stop_nor_crash_it() -> None:
    jobs = spec(2)
    port = ports_of(jobs)[0]
    results: list[TfdistError | None] = []
    first = threading.Thread(target=lambda: results.extend(meet(tasks(jobs, 0), SOON)))
    first.start()
    held: list[socket.socket] = []
    try:
        while not held:  # It takes a moment until it listens.
            try:
                held.append(socket.create_connection(("127.0.0.1", port)))
            except OSError:
                continue
        for data in GARBAGE * 3:
            stranger = socket.create_connection(("127.0.0.1", port))
            with stranger, contextlib.suppress(OSError):  # Hung up on.
                stranger.sendall(data)
        # More silent connections than it keeps.
        held += [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
        assert first.is_alive(), "a stranger started or crashed it"
        assert meet(tasks(jobs, 1), SOON) == [None]
        first.join(SOON)
        assert results == [None]
    finally:
        for stranger in held:
            stranger.close()
        first.join()


class Impostor:
    """Speaks for worker/`index` as a test says, to the real task worker/`other`."""

    version = __version__

    def __init__(self, jobs: dict[str, list[str]], index: int, other: int) -> None:
        self.name = f"worker/{index}"
        self._address = ("127.0.0.1", ports_of(jobs)[other])
        self.listener = socket.create_server(("127.0.0.1", ports_of(jobs)[index]))
        self.listener.setblocking(False)
        self.key = next(iter(Roster(c, "").key for c in tasks(jobs, index)))

    def hello(self, *, reports: bool = False) -> list[object]:
        return Hello(self.name, "0123456789abcdef", reports, self.version).encode()

    @contextlib.asynccontextmanager
    async def call(
        self, key: bytes = b"", *, reports: bool = True
    ) -> AsyncIterator[tuple[SignedConnection, bool]]:
        """Calls the real task; gives the connection, and whether it has proven itself."""
        loop = asyncio.get_running_loop()
        while True:
            client = socket.socket()
            client.setblocking(False)
            try:
                await loop.sock_connect(client, self._address)
                break
            except OSError:  # It takes a moment until it listens.
                client.close()
        with client:
            connection = SignedConnection(client, key or self.key, CALLER)
            await connection.greet()
            await connection.send(self.hello(reports=reports))
            _, is_proven = await connection.receive()
            yield connection, is_proven

    async def answer(self) -> tuple[SignedConnection, Hello]:
        """Answers the next one who asks who it is; returns what that one says."""
        caller, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        caller.setblocking(False)
        connection = SignedConnection(caller, self.key, LISTENER)
        await connection.greet()
        hello = Hello.decode(await connection.receive_proven())
        assert hello is not None
        await connection.send(self.hello())
        return connection, hello

    async def answer_questions(self) -> None:
        """Answers all who ask who it is."""
        while True:
            with contextlib.suppress(OSError):
                connection, _ = await self.answer()
                connection.close()


async def is_hung_up_on(connection: SignedConnection) -> bool:
    try:
        await connection.receive()
    except ConnectionError:
        return True
    return False


def read_line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and (more := connection.recv(1)):
        data += more
    return data


def in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize(("last", "ended"), [(GO, type(None)), (END, PeerError), ("", PeerError)])
def test_who_gives_up_takes_the_leaders_last_answer(last: str, ended: type) -> None:
    """The leader may have started others already; one that answers nothing is not waited for."""
    jobs = spec(2)
    results: list[TfdistError | None] = []
    timeout = 2.0
    began = time.monotonic()
    leader = Impostor(jobs, 0, other=1)
    follower = in_background(lambda: results.extend(meet(tasks(jobs, 1), timeout)))

    async def lead() -> None:
        hello = None
        while hello is None or not hello.reports:
            connection, hello = await leader.answer()
        report = Status.decode(await connection.receive_proven())
        while report.state != LEAVE:
            await asyncio.sleep(0.05)
            await connection.send(Status(WAIT).encode())
            report = Status.decode(await connection.receive_proven())
        assert time.monotonic() - began >= timeout
        if last:
            await connection.send(Status(last).encode())
        with contextlib.suppress(OSError):
            await connection.receive()  # It hangs up.
        connection.close()

    with leader.listener:
        asyncio.run(asyncio.wait_for(lead(), SOON))
        follower.join(20.0)  # It does not wait for long, nor until the leader hangs up.
    assert [type(result) for result in results] == [ended]


@pytest.mark.parametrize("other", [0, 1])
@pytest.mark.parametrize("version", ["9.9.9", ""])
def test_another_version_is_named(
    other: int, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that greets in another way."""
    monkeypatch.setattr(faults, "_HOPELESS_SECONDS", 0.5)
    jobs = spec(2)
    results: list[TfdistError | None] = []
    impostor = Impostor(jobs, 1 - other, other=other)
    impostor.version = version
    task = in_background(lambda: results.extend(meet(tasks(jobs, other), SOON)))

    async def greet_otherwise() -> None:
        while True:
            caller, _ = await asyncio.get_running_loop().sock_accept(impostor.listener)
            with caller:
                await asyncio.get_running_loop().sock_sendall(caller, GARBAGE[-1])

    async def speak() -> None:
        answering = asyncio.create_task(
            impostor.answer_questions() if version else greet_otherwise()
        )
        await asyncio.to_thread(task.join, SOON)
        answering.cancel()

    with impostor.listener:
        asyncio.run(asyncio.wait_for(speak(), SOON))
    (error,) = results
    assert isinstance(error, ConfigError)
    has = "has tfdist 9.9.9, and" if version else "has another version of tfdist than"
    comma = "" if version else ","
    assert str(error) == (
        f"rendezvous: worker/{other} gave up: {impostor.name} at {jobs['worker'][1 - other]} {has} "
        f"worker/{other}{comma} {__version__}; install the same version everywhere"
    )


def test_nobody_starts_without_a_task_that_was_let_go() -> None:
    jobs = spec(3)
    results: list[TfdistError | None] = []
    leader = in_background(lambda: results.extend(meet(tasks(jobs, 0), 4.0)))
    member = Impostor(jobs, 1, other=0)

    async def call() -> None:
        answering = asyncio.create_task(member.answer_questions())
        async with member.call() as (connection, _):
            await connection.send(Status(LEAVE).encode())
            assert Status.decode(await connection.receive_proven()).state == END
            # It has not hung up yet.
            results.extend(await asyncio.to_thread(meet, tasks(jobs, 2), 2.0))
        await asyncio.to_thread(leader.join, SOON)
        answering.cancel()

    with member.listener:
        asyncio.run(asyncio.wait_for(call(), SOON))
    assert [type(result) for result in results] == [PeerError, PeerError]
    assert "worker/1 " in str(results[0]) and "worker/1 " in str(results[1])


def test_the_leader_does_not_count_a_caller_of_another_cluster() -> None:
    jobs = spec(2)
    results: list[TfdistError | None] = []
    leader = in_background(lambda: results.extend(meet(tasks(jobs, 0), LATE)))
    member = Impostor(jobs, 1, other=0)

    async def call() -> None:
        answering = asyncio.create_task(member.answer_questions())
        async with member.call(b"e" * 32) as (connection, is_proven):
            assert not is_proven
            assert await is_hung_up_on(connection), "it was listened to"
        await asyncio.to_thread(leader.join, SOON)
        answering.cancel()

    with member.listener:
        asyncio.run(asyncio.wait_for(call(), SOON))
    assert isinstance(results[0], PeerError)
    assert "worker/1 does not reach worker/0" in str(results[0])


def test_a_task_that_falls_silent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is stopped, or whose machine is lost: nothing hangs up for it."""
    monkeypatch.setattr("tfdist.rendezvous.start_barrier._SILENT_SECONDS", 0.3)
    jobs = spec(3)
    results: list[TfdistError | None] = []
    leader = in_background(lambda: results.extend(meet(tasks(jobs, 0), 4.0)))
    member = Impostor(jobs, 1, other=0)

    async def call() -> None:
        async with member.call() as (connection, is_proven):
            assert is_proven
            await connection.send(Status(WAIT).encode())
            assert Status.decode(await connection.receive_proven()).state == WAIT
            assert await is_hung_up_on(connection)
        await asyncio.to_thread(leader.join, SOON)

    with member.listener:  # It accepts nobody.
        asyncio.run(asyncio.wait_for(call(), SOON))
    assert f"worker/1 at {jobs['worker'][1]} does not answer; worker/2 at" in str(results[0])


def test_a_task_learns_what_is_wrong_with_itself_as_the_leader_sees_it() -> None:
    jobs = spec(2)
    results: list[TfdistError | None] = []
    leader = Impostor(jobs, 0, other=1)
    follower = in_background(lambda: results.extend(meet(tasks(jobs, 1), LATE)))

    async def lead() -> None:
        connection, _ = await leader.answer()
        while True:
            report = Status.decode(await connection.receive_proven())
            problem = Problem("missing", "worker/1", "worker/1 at here does not answer")
            state = END if report.state == LEAVE else WAIT
            await connection.send(Status(state, (problem,), more=3).encode())
            if report.state == LEAVE:
                break
        assert await is_hung_up_on(connection)
        connection.close()

    with leader.listener:
        asyncio.run(asyncio.wait_for(lead(), SOON))
        follower.join(SOON)
    assert isinstance(results[0], PeerError)
    assert "worker/1 at here does not answer; and 3 more; start the missing" in str(results[0])


@pytest.mark.parametrize("name", ["worker/1", "worker/0"])
def test_who_lacks_the_secret_neither_joins_nor_ends_the_job(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows cluster, job and protocol, and claims to be one of the tasks."""
    jobs = spec(2)
    monkeypatch.delenv("TFDIST_SECRET", raising=False)
    stranger = Impostor(jobs, 1, other=0)
    stranger.listener.close()
    monkeypatch.setenv("TFDIST_SECRET", "s")
    results: list[TfdistError | None] = []
    first = in_background(lambda: results.extend(meet(tasks(jobs, 0), SOON)))
    stranger.name = name

    async def call() -> None:
        async with stranger.call() as (connection, is_proven):
            assert not is_proven
            assert await is_hung_up_on(connection)

    asyncio.run(asyncio.wait_for(call(), SOON))
    assert first.is_alive()
    assert meet(tasks(jobs, 1), SOON) == [None]
    first.join(SOON)
    assert results == [None]


@pytest.mark.parametrize("count", [128, pytest.param(512, marks=pytest.mark.long)])
def test_many_tasks_meet_with_a_few_connections_each(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    (first,) = tasks(spec(count), 0)
    clusters = [dataclasses.replace(first, task=task) for task in first.tasks]
    greet = SignedConnection.greet

    async def count_calls(connection: SignedConnection) -> None:
        nonlocal calls
        calls += 1
        await greet(connection)

    monkeypatch.setattr(SignedConnection, "greet", count_calls)

    async def meet_all() -> None:
        deadline = time.monotonic() + 2 * SOON
        await asyncio.gather(
            *(meeting._Meeting(cluster, 2 * SOON, deadline, "").hold() for cluster in clusters)
        )

    asyncio.run(meet_all())
    # Each reports, and is called at its address: two ends of two connections, but for those that
    # a busy machine has made come too late. All to all it would be half a million.
    assert 4 * (count - 1) <= calls < 40 * count


def test_nobody_leaves_while_another_gives_up() -> None:
    """Tasks whose deadlines end while the meeting does agree on how it ended."""
    outcomes = set()
    for trial in range(4):
        jobs = spec(3)
        result: dict[int, TfdistError | None] = {}

        def one(
            cluster: Cluster, timeout: float, result: dict[int, TfdistError | None] = result
        ) -> None:
            (result[cluster.task.index],) = meet([cluster], timeout)

        early = [threading.Thread(target=one, args=(c, 0.5)) for c in tasks(jobs, 0, 1)]
        last = threading.Thread(target=one, args=(*tasks(jobs, 2), 1.5))
        for thread in early:
            thread.start()
        early[0].join(0.30 + 0.09 * trial)
        last.start()
        for thread in [*early, last]:
            thread.join()
        ended = {error is None for error in result.values()}
        assert len(ended) == 1, f"some left and some gave up: {result}"
        outcomes |= ended
    assert outcomes, "no trial ran"


# How a server of TensorFlow 2.21 begins, whoever calls: a SETTINGS and a WINDOW_UPDATE frame.
SETTINGS = bytes.fromhex(
    "000018040000000000000400400000000500400000000600004000fe0300000001000004080000000000003f0001"
)


@contextlib.contextmanager
def in_tensorflow(*addresses: str) -> Iterator[None]:
    """Servers that speak as TensorFlow's do."""
    with contextlib.ExitStack() as stack:
        for address in addresses:
            server = socket.create_server(("127.0.0.1", int(address.rpartition(":")[2])))
            stack.enter_context(server)

            def serve(server: socket.socket = server) -> None:
                with contextlib.suppress(OSError):
                    while True:
                        caller, _ = server.accept()
                        with caller:
                            read_line(caller)
                            caller.sendall(SETTINGS)

            thread = in_background(serve)
            stack.callback(thread.join)
            stack.callback(server.shutdown, socket.SHUT_RDWR)
        yield


@pytest.fixture
def training_job() -> dict[str, list[str]]:
    chief, ps, *workers = (f"127.0.0.1:{port}" for port in free_ports(4))
    return {"chief": [chief], "ps": [ps], "worker": workers}


def test_a_worker_joins_a_job_that_runs_without_it(
    training_job: dict[str, list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    (worker,) = tasks(training_job, 1)
    with in_tensorflow(*training_job["chief"], *training_job["ps"]):
        assert meet([worker], SOON) == [None]
    assert "worker/1 joins a job that runs: its chief and ps" in capfd.readouterr().err
    assert_free({"worker": training_job["worker"][1:]})


@pytest.mark.parametrize("role", ["chief", "ps"])
def test_a_worker_does_not_join_half_a_job(
    training_job: dict[str, list[str]], role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfdist.rendezvous.meeting._JOIN_SECONDS", 0.2)
    with in_tensorflow(*training_job[role]):
        (error,) = meet(tasks(training_job, 1), LATE)
    assert isinstance(error, PeerError)
    assert f"{role}/0 at {training_job[role][0]} is another program, or has started" in str(error)


def test_nobody_but_a_worker_of_a_ps_job_joins_one_that_runs(
    training_job: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfdist.rendezvous.meeting._JOIN_SECONDS", 0.2)
    everyone = [address for addresses in training_job.values() for address in addresses]
    with in_tensorflow(*(a for a in everyone if a not in training_job["ps"])):
        (error,) = meet([Cluster.from_cluster_spec(training_job, "ps", 0)], LATE)
    assert isinstance(error, PeerError)
    jobs = spec(2)
    with in_tensorflow(jobs["worker"][0]):
        (error,) = meet(tasks(jobs, 1), LATE)
    assert isinstance(error, PeerError)
