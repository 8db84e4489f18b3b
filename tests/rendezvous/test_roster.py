"""A meeting that fails says in one line what is wrong with whom, and whether to try again."""

from __future__ import annotations

import asyncio

import pytest

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError, PeerError
from tfdist.rendezvous.faults import KINDS
from tfdist.rendezvous.messages import NO_PROOF, Hello, decode
from tfdist.rendezvous.roster import Introduction, Roster

WAIT = "; start the missing tasks, or wait longer"
WRONG = "; give every task the same cluster and an index of its own"


def roster(count: int = 3, me: int = 1, job: str = "", **more: list[str]) -> Roster:
    jobs = {"worker": [f"host{index}:2222" for index in range(count)], **more}
    made = Roster(Cluster.from_cluster_spec(jobs, "worker", me), job)
    made.listening = True
    return made


def meet(roster: Roster, *names: str) -> None:
    for name in names or roster.peers:
        roster.peers[name].met = True


def hello_of(name: str, *faults: tuple[str, str], missing: tuple[str, ...] = ()) -> Hello:
    return Hello("hello", name, "f" * 16, "c" * 32, faults=faults, missing=missing)


def refused(roster: Roster, kind: type[Exception], timeout: float = 2.5) -> str:
    error = roster.verdict(timeout)
    assert type(error) is kind
    text = str(error)
    assert "\n" not in text
    start = f"rendezvous: {roster.name} gave up"
    start += f" after {timeout:g} s: " if kind is PeerError else ": "
    end = WAIT if kind is PeerError else WRONG
    assert text.startswith(start) and text.endswith(end)
    return text[len(start) : -len(end)]


def test_it_is_ready_when_all_are_there_and_nothing_is_wrong() -> None:
    one = roster()
    assert not one.ready()
    meet(one, "worker/0")
    assert not one.ready()
    meet(one)
    assert one.ready()
    one.listening = False
    assert not one.ready()
    one.listening = True
    one.see_duplicate()
    assert not one.ready()


def test_the_first_task_leads_and_nobody_is_its_own_peer() -> None:
    one = roster(2, chief=["boss:1"], ps=["store:1"])
    assert one.names == ["chief/0", "worker/0", "worker/1", "ps/0"]
    assert (one.leader, one.name) == ("chief/0", "worker/1")
    assert list(one.peers) == ["chief/0", "worker/0", "ps/0"]


def test_tasks_of_one_cluster_job_and_secret_have_one_key_and_nonces_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TFDIST_SECRET", raising=False)
    one, two = roster(me=0), roster(me=1)
    assert one.key == two.key
    assert one.nonce != two.nonce
    others = [roster(job="another"), roster(4), roster(evaluator=["host9:1"])]
    monkeypatch.setenv("TFDIST_SECRET", "s")
    others.append(roster(me=0))
    assert len({one.key, *(other.key for other in others)}) == 5


def test_what_it_says_is_what_it_sees() -> None:
    one = roster(4)
    meet(one, "worker/2")
    one.see_duplicate()
    one.take_notes(one.peers["worker/2"], hello_of("worker/2", ("taken", "worker/3")))
    assert one.hello("ready", "c" * 32) == Hello(
        "ready",
        "worker/1",
        one.nonce,
        "c" * 32,
        faults=(("duplicate", "worker/1"),),  # Not what it was only told.
        missing=("worker/0", "worker/3"),
    )


def test_absent_tasks_are_named_in_the_clusters_order() -> None:
    one = roster(4)
    one.peers["worker/2"].met = True
    one.peers["worker/3"].problem = "is not there (Connection refused)"
    wanted = "worker/0 at host0:2222 has not answered; worker/3 at host3:2222 is not there "
    assert refused(one, PeerError) == f"{wanted}(Connection refused)"


def test_of_many_absent_tasks_eight_are_named() -> None:
    text = refused(roster(12, me=11), PeerError)
    assert [f"worker/{i} at" in text for i in range(11)] == [True] * 8 + [False] * 3
    assert text.endswith("; and 3 more")


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("taken", PeerError, "the port of worker/2 is taken by another program (says worker/0)"),
        ("duplicate", ConfigError, "two processes are worker/2 (says worker/0)"),
        (
            "foreign",
            ConfigError,
            "worker/2 belongs to another cluster, job or secret (says worker/0)",
        ),
        (
            "misplaced",
            ConfigError,
            "the address of worker/2 is that of another task (says worker/0)",
        ),
    ],
)
def test_a_fault_takes_the_place_of_what_a_peer_failed_to_do(
    kind: str, error: type[Exception], text: str
) -> None:
    one = roster()
    meet(one, "worker/0")
    one.take_notes(one.peers["worker/0"], hello_of("worker/0", (kind, "worker/2")))
    assert refused(one, error) == text


def test_two_processes_of_ones_own_name_cannot_be_mended_by_waiting() -> None:
    one = roster(2)
    meet(one)
    one.see_duplicate()
    assert refused(one, ConfigError) == "two processes are worker/1"


def test_one_that_calls_from_another_cluster_is_said_and_may_be_an_old_task() -> None:
    one = roster()
    meet(one, "worker/0")
    one.strangers.add("worker/2")
    wanted = "worker/2 at host2:2222 has not answered, and one of another cluster, job or secret "
    assert refused(one, PeerError) == wanted + "called in its name"
    meet(one, "worker/2")  # The task itself came; the caller was somebody else.
    assert refused(one, PeerError) == "all are there, but the start was not agreed in time"


def test_whom_a_peer_does_not_reach_is_said_where_nothing_else_is_known() -> None:
    one = roster(4)
    meet(one)
    missing = ("worker/2", "worker/3")
    one.take_notes(one.peers["worker/0"], hello_of("worker/0", missing=missing))
    assert refused(one, PeerError) == "worker/0 does not reach worker/2, worker/3"
    one.peers["worker/3"].met = False
    assert refused(one, PeerError) == "worker/3 at host3:2222 has not answered"


@pytest.mark.parametrize(
    ("answer", "taken"),
    [
        (b"well met\n", Introduction(b"well met\n")),
        (b"", Introduction(b"")),
        (b"x" * 2**20, Introduction(b"")),  # Too much for one line.
    ],
)
def test_it_says_who_it_is_and_takes_the_answer_or_none(answer: bytes, taken: Introduction) -> None:
    one, heard = roster(), []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readline())
        writer.write(answer)
        writer.close()

    async def call() -> Introduction:
        async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            try:
                return await one.introduce((reader, writer), "hello")
            finally:
                writer.transport.abort()

    assert asyncio.run(call()) == taken
    (said,) = [decode(line, KINDS) for line in heard]
    assert said is not None
    # Nothing that another job could use.
    assert (said.task, said.proof, said.faults, said.missing) == (one.name, NO_PROOF, (), ())
