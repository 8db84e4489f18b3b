from __future__ import annotations

import concurrent.futures
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tfdist.cluster import Cluster
from tfdist.cluster.rendezvous import rendezvous
from tfdist.cluster.wire import MAX_BYTES, Hello, decode
from tfdist.errors import ConfigError, PeerError, TfdistError
from tfdist.launch.ports import free_ports

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
    for error in errors[:2]:
        assert isinstance(error, ConfigError)
        assert "worker/2" in str(error) and "another cluster" in str(error)


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
    b"tfdist-meet/1 \n",
    b"tfdist-meet/1 " + b"[" * 5000 + b"\n",
    b'tfdist-meet/1 ["ready", "' + b"0" * 64 + b'", "worker/1", "0123456789abcdef", [], []]\n',
    b'tfdist-meet/1 ["hello", "' + b"f" * 64 + b'", "worker/0", "0123456789abcdef", [], []]\n',
]


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


def test_nobody_leaves_while_another_gives_up() -> None:
    """Tasks whose deadlines end while the meeting does agree on how it ended."""
    outcomes = set()
    for trial in range(6):
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
        early[0].join(0.30 + 0.06 * trial)
        last.start()
        for thread in [*early, last]:
            thread.join()
        ended = {error is None for error in result.values()}
        assert len(ended) == 1, f"some left and some gave up: {result}"
        outcomes |= ended
    assert outcomes, "no trial ran"


def test_messages_survive_the_wire() -> None:
    hello = Hello("ready", "0" * 64, "ps/3", "f" * 16, (("taken", "ps/1"),), ("worker/0",))
    assert decode(hello.encode(), ("taken",)) == hello
    assert decode(hello.encode(), ("foreign",)) is None
    assert decode(hello.encode()[:-1], ("taken",)) is None


@pytest.mark.parametrize("data", GARBAGE[:-2])
def test_garbage_is_no_message(data: bytes) -> None:
    assert decode(data, ("taken",)) is None
