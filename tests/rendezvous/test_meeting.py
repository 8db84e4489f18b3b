from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError, PeerError, TfdistError
from tfdist.launcher.ports import free_ports
from tfdist.rendezvous.meeting import rendezvous
from tfdist.rendezvous.messages import MAX_BYTES, Hello, decode, is_http2
from tfdist.rendezvous.roster import Roster

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


# 24: every task is asked while it leaves, which has cost a lost cancellation before.
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
    assert "the port of worker/2 is taken by another program" in str(errors[0])
    assert f"port {port} of worker/2 is taken by another program" in str(errors[2])


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
        assert "worker/2 at no-such-host.invalid:2222 its name" in str(error)
        assert "\n" not in str(error)


GARBAGE = [
    b"",
    b"\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x00" * 4096,
    b"x" * (4 * MAX_BYTES),
    b"tfdist-meet/2 \n",
    b"tfdist-meet/2 " + b"[" * 5000 + b"\n",
    Hello("ready", "worker/1", "0123456789abcdef", "c" * 32).encode() * 2,
    Hello("hello", "worker/0", "0123456789abcdef", "c" * 32, proof="f" * 64).encode() * 2,
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

    def __init__(self, jobs: dict[str, list[str]], index: int, other: int) -> None:
        self.name = f"worker/{index}"
        self._address = ("127.0.0.1", ports_of(jobs)[other])
        self.listener = socket.create_server(("127.0.0.1", ports_of(jobs)[index]))
        self.listener.settimeout(SOON)
        self.key = next(iter(Roster(c, "").key for c in tasks(jobs, index)))

    @contextlib.contextmanager
    def call(
        self, kind: str, key: bytes = b"", faults: tuple[tuple[str, str], ...] = ()
    ) -> Iterator[tuple[socket.socket, Hello]]:
        """Calls the real task; gives the connection and what it answers."""
        while True:
            with contextlib.suppress(OSError):  # It takes a moment until it listens.
                connection = socket.create_connection(self._address, timeout=SOON)
                break
        with connection:
            connection.sendall(self.hello("hello").encode())
            answer = decode(read_line(connection), FAULTS)
            assert answer is not None
            own = dataclasses.replace(self.hello(kind), faults=faults)
            own = own.signed(key or self.key, "caller", answer.challenge)
            connection.sendall(own.encode())
            yield connection, answer

    def hello(self, kind: str) -> Hello:
        return Hello(kind, self.name, "0123456789abcdef", "c" * 32)

    def answer(self, caller: socket.socket) -> Hello:
        """Answers who asks who it is; returns what the caller then says."""
        first = decode(read_line(caller), FAULTS)
        assert first is not None
        own = self.hello("hello").signed(self.key, "answerer", first.challenge)
        caller.sendall(own.encode())
        hello = decode(read_line(caller), FAULTS)
        assert hello is not None
        assert hello.is_proven(self.key, "caller", own.challenge)
        return hello

    def answer_questions(self) -> None:
        """Answers all who ask who it is, until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self.listener.accept()
                with caller, contextlib.suppress(OSError, AssertionError):
                    self.answer(caller)


FAULTS = ("foreign", "duplicate", "misplaced", "taken")


def read_line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and (more := connection.recv(1)):
        data += more
    return data


def in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize(("says_go", "ended"), [(True, type(None)), (False, PeerError)])
def test_who_has_promised_waits_a_little_beyond_its_deadline(says_go: bool, ended: type) -> None:
    """The leader's "go", given in time, may arrive when the deadline is over."""
    jobs = spec(2)
    results: list[TfdistError | None] = []
    timeout = 3.0
    began = time.monotonic()
    follower = in_background(lambda: results.extend(meet(tasks(jobs, 1), timeout)))
    leader = Impostor(jobs, 0, other=1)
    prepared = False
    with leader.listener:
        while not prepared:
            caller, _ = leader.listener.accept()
            hello = leader.answer(caller)
            if hello.kind != "ready":
                caller.close()
                continue
            caller.sendall(b"prepare 1\n")
            prepared = read_line(caller) == b"prepared 1\n"
        with caller:
            assert time.monotonic() - began < timeout, "too slow to try this"
            time.sleep(began + timeout + 0.3 - time.monotonic())
            with contextlib.suppress(OSError):
                if says_go:
                    caller.sendall(b"go\n")
            follower.join(20.0)  # It does not wait for long, nor until the leader hangs up.
    assert [type(result) for result in results] == [ended]


def test_the_leader_does_not_count_a_caller_of_another_cluster() -> None:
    jobs = spec(2)
    results: list[TfdistError | None] = []
    leader = in_background(lambda: results.extend(meet(tasks(jobs, 0), LATE)))
    member = Impostor(jobs, 1, other=0)
    with member.listener:
        answering = in_background(member.answer_questions)
        with member.call("ready", key=b"e" * 32) as (connection, _):
            assert read_line(connection) == b"", "it was told to prepare"
        leader.join(SOON)
        member.listener.shutdown(socket.SHUT_RDWR)
    answering.join()
    assert isinstance(results[0], PeerError)
    assert "all are there, but the start was not agreed in time" in str(results[0])


def test_what_a_caller_of_another_cluster_sees_is_not_believed() -> None:
    jobs = spec(2)
    results: list[TfdistError | None] = []
    first = in_background(lambda: results.extend(meet(tasks(jobs, 0), SOON)))
    stranger = Impostor(jobs, 1, other=0)
    stranger.listener.close()
    with stranger.call("hello", key=b"e" * 32, faults=(("taken", "worker/0"),)):
        pass
    with stranger.call("hello") as (_, answer):  # What worker/0 says that it sees.
        assert answer.faults == ()
    assert meet(tasks(jobs, 1), SOON) == [None]
    first.join(SOON)
    assert results == [None]


def test_who_lacks_the_secret_neither_joins_nor_ends_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It knows cluster, job and protocol, and says that it is both tasks."""
    jobs = spec(2)
    monkeypatch.delenv("TFDIST_SECRET", raising=False)
    stranger = Impostor(jobs, 1, other=0)
    stranger.listener.close()
    monkeypatch.setenv("TFDIST_SECRET", "s")
    results: list[TfdistError | None] = []
    first = in_background(lambda: results.extend(meet(tasks(jobs, 0), SOON)))
    for name in ("worker/0", "worker/1"):
        stranger.name = name
        with stranger.call("ready") as (connection, answer):
            assert not answer.is_proven(stranger.key, "answerer", "c" * 32)
            assert read_line(connection) == b""  # Hung up on.
    assert first.is_alive()
    assert meet(tasks(jobs, 1), SOON) == [None]
    first.join(SOON)
    assert results == [None]


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


def test_messages_survive_the_wire() -> None:
    notes = {"faults": (("taken", "ps/1"),), "missing": ("worker/0",)}
    hello = Hello("ready", "ps/3", "f" * 16, "c" * 32, **notes)
    assert decode(hello.encode(), ("taken",)) == hello
    assert decode(hello.encode(), ("foreign",)) is None
    assert decode(hello.encode()[:-1], ("taken",)) is None


@pytest.mark.parametrize("data", GARBAGE[:-2])
def test_garbage_is_no_message(data: bytes) -> None:
    assert decode(data, ("taken",)) is None
    assert not is_http2(data)
