from __future__ import annotations

import pytest

from tfdist.rendezvous import faults as module
from tfdist.rendezvous.faults import Faults
from tfdist.rendezvous.messages import Hello

NAMES = ["worker/0", "worker/1", "worker/2"]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def hello(task: str, *faults: tuple[str, str]) -> Hello:
    return Hello("hello", task, "f" * 16, "c" * 32, faults=faults)


def test_a_fault_that_is_not_seen_again_is_forgiven(clock: Clock) -> None:
    faults = Faults(NAMES)
    faults.see("taken", "worker/0", "it is taken")
    clock.now = 4.0
    assert faults
    clock.now = 6.0
    assert not faults


def test_only_what_stands_for_a_while_is_hopeless(clock: Clock) -> None:
    faults = Faults(NAMES)
    for now in range(12):
        clock.now = float(now)
        faults.see("foreign", "worker/1", "it is foreign")
        faults.see("taken", "worker/0", "it is taken")
        assert faults.stands() is (now > 10)
    faults.clear("foreign", "worker/1")
    assert not faults.stands(), "a taken port may become free"


def test_what_another_task_tells_ends_when_it_says_so(clock: Clock) -> None:
    faults = Faults(NAMES)
    faults.hear(hello("worker/2", ("duplicate", "worker/1"), ("taken", "nobody/9")))
    told = "two processes are worker/1 (says worker/2)"
    assert faults.gravest() == {"worker/1": ("duplicate", told)}
    assert faults.own() == (), "what is only told must not be told on"
    faults.hear(hello("worker/0"))  # Another one that does not see it proves nothing.
    assert faults
    faults.hear(hello("worker/2"))
    assert not faults


def test_the_gravest_fault_of_a_task_is_named_and_our_own_words_count(clock: Clock) -> None:
    faults = Faults(NAMES)
    faults.see("taken", "worker/1", "its port is taken")
    faults.hear(hello("worker/2", ("foreign", "worker/1")))
    assert faults.gravest()["worker/1"][0] == "foreign"
    faults.see("foreign", "worker/1", "we saw it")
    assert faults.gravest()["worker/1"] == ("foreign", "we saw it")
