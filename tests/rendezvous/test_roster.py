"""A meeting that fails says in one line what is wrong with whom, and whether to try again."""

from __future__ import annotations

import pytest

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError, PeerError
from tfdist.rendezvous import roster as module
from tfdist.rendezvous.messages import END, WAIT, Hello, Problem, Status
from tfdist.rendezvous.roster import Roster

WAIT_LONGER = "; start the missing tasks, or wait longer"
WRONG = "; give every task the same cluster and its own index"


def roster(count: int = 3, me: int = 0, job: str = "", **more: list[str]) -> Roster:
    jobs = {"worker": [f"host{index}:2222" for index in range(count)], **more}
    made = Roster(Cluster.from_cluster_spec(jobs, "worker", me), job)
    made.listening = True
    return made


def meet(roster: Roster, *names: str) -> None:
    for name in names or roster.peers:
        roster.peers[name].met = True
        roster.peers[name].reports = {"f" * 16}


def refused(roster: Roster, kind: type[Exception], timeout: float = 2.5, advice: str = "") -> str:
    error = roster.verdict(timeout)
    assert type(error) is kind
    assert roster.is_hopeless() is (kind is ConfigError)
    text = str(error)
    assert "\n" not in text
    start = f"rendezvous: {roster.name} gave up"
    start += f" after {timeout:g} s: " if kind is PeerError else ": "
    end = f"; {advice}" if advice else WAIT_LONGER if kind is PeerError else WRONG
    assert text.startswith(start) and text.endswith(end)
    return text[len(start) : -len(end)]


def test_it_is_complete_when_all_have_come_once_and_nothing_is_wrong() -> None:
    one = roster()
    assert not one.is_complete()
    meet(one, "worker/1")
    assert not one.is_complete()
    meet(one)
    assert one.is_complete()
    one.peers["worker/1"].reports.add("e" * 16)
    assert not one.is_complete()
    one.peers["worker/1"].reports.clear()
    assert not one.is_complete()
    meet(one)
    one.listening = False
    assert not one.is_complete()
    one.listening = True
    one.see_duplicate("worker/2")
    assert not one.is_complete()


def test_the_first_task_leads_and_nobody_is_its_own_peer() -> None:
    one = roster(2, me=1, chief=["boss:1"], ps=["store:1"])
    assert one.names == ["chief/0", "worker/0", "worker/1", "ps/0"]
    assert (one.leader, one.name, one.leads) == ("chief/0", "worker/1", False)
    assert roster(2).leads and not roster(2, me=1).leads
    assert list(one.peers) == ["chief/0", "worker/0", "ps/0"]


def test_tasks_of_one_cluster_job_and_secret_have_one_key_and_their_own_nonces(
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


def test_a_task_tells_the_leader_what_is_wrong_with_itself() -> None:
    one = roster(4, me=1)
    one.see_duplicate("worker/1")
    one.faults.see("foreign", "worker/0", "it is foreign")
    one.hear(Status(WAIT, (Problem("taken", "worker/1", "as the leader sees it"),)))
    assert one.own_problems() == (Problem("duplicate", "worker/1", "two processes are worker/1"),)
    assert one.hello(reports=True) == Hello("worker/1", one.nonce, True)


def test_the_leader_answers_with_all_that_is_wrong_the_hopeless_first() -> None:
    one = roster(4)
    meet(one, "worker/2")
    one.see_duplicate("worker/3")
    assert one.answer(WAIT) == Status(
        WAIT,
        (
            Problem("duplicate", "worker/3", "two processes are worker/3"),
            Problem("missing", "worker/1", "worker/1 at host1:2222 has not answered"),
        ),
    )


def test_absent_tasks_are_named_in_the_clusters_order() -> None:
    one = roster(4)
    meet(one, "worker/2")
    one.peers["worker/3"].problem = "is not there (Connection refused)"
    wanted = "worker/1 at host1:2222 has not answered; worker/3 at host3:2222 is not there "
    assert refused(one, PeerError) == f"{wanted}(Connection refused)"


def test_of_many_absent_tasks_eight_are_named() -> None:
    one = roster(12)
    text = refused(one, PeerError)
    assert [f"worker/{i} at" in text for i in range(1, 12)] == [True] * 8 + [False] * 3
    assert text.endswith("; and 3 more")
    told = roster(12, me=11)
    told.hear(Status.decode([END, [list(p) for p in one.answer(END).problems[:8]], 3]))
    assert refused(told, PeerError) == text


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("taken", PeerError),
        ("missing", PeerError),
        ("duplicate", ConfigError),
        ("version", ConfigError),
        ("foreign", ConfigError),
        ("misplaced", ConfigError),
    ],
)
def test_what_the_leader_says_is_what_every_task_names(kind: str, error: type[Exception]) -> None:
    one = roster(me=1)
    one.hear(Status(WAIT, (Problem(kind, "worker/2", "something is wrong with worker/2"),)))
    advice = {
        "taken": "end that program, or give the task another port",
        "version": "install the same version everywhere",
    }
    assert refused(one, error, advice=advice.get(kind, "")) == "something is wrong with worker/2"


def test_a_fault_takes_the_place_of_what_a_peer_failed_to_do() -> None:
    one = roster()
    meet(one, "worker/1")
    one.faults.see("misplaced", "worker/2", "worker/2 is elsewhere")
    assert refused(one, ConfigError) == "worker/2 is elsewhere"


def test_two_processes_of_ones_own_name_cannot_be_mended_by_waiting() -> None:
    one = roster(2)
    meet(one)
    one.see_duplicate("worker/0")
    assert refused(one, ConfigError) == "two processes are worker/0"


def test_one_that_calls_from_another_cluster_is_said_and_may_be_an_old_task() -> None:
    one = roster()
    meet(one, "worker/1")
    one.strangers.add("worker/2")
    wanted = "worker/2 at host2:2222 has not answered, and one of another cluster, job or secret "
    assert refused(one, PeerError) == wanted + "called in its name"
    meet(one, "worker/2")  # The task itself came; the caller was somebody else.
    assert refused(one, PeerError) == "all are there, but the start was not agreed in time"


def test_one_that_answers_and_does_not_report_is_named() -> None:
    one = roster()
    meet(one)
    one.peers["worker/2"].reports.clear()
    assert refused(one, PeerError) == "worker/2 does not reach worker/0"


def test_without_the_leader_a_task_names_it_and_whom_it_has_missed_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = roster(4, me=1)
    assert refused(one, PeerError) == "worker/0 at host0:2222 has not answered"
    one.peers["worker/3"].problem = "is not there (Connection refused)"
    named = "worker/0 at host0:2222 has not answered; worker/3 at host3:2222 is not there "
    assert refused(one, PeerError) == f"{named}(Connection refused)"
    # What the leader says counts, for a moment also when it has given up and gone.
    one.hear(Status(END, (Problem("missing", "worker/2", "worker/2 is away"),)))
    assert refused(one, PeerError) == "worker/2 is away"
    later = module.time.monotonic() + 5.1
    monkeypatch.setattr(module.time, "monotonic", lambda: later)
    assert refused(one, PeerError) == f"{named}(Connection refused)"
    one.follows = True
    assert refused(one, PeerError) == "worker/2 is away"
