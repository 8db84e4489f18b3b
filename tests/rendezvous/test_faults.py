from __future__ import annotations

import pytest

from tfdist.rendezvous import faults as module
from tfdist.rendezvous.faults import Faults
from tfdist.rendezvous.messages import Problem


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


def test_a_fault_that_is_not_seen_again_is_forgiven(clock: Clock) -> None:
    faults = Faults()
    faults.see("taken", "worker/0", "it is taken")
    clock.now = 4.0
    assert faults
    clock.now = 6.0
    assert not faults


def test_what_stands_for_a_while_ends_the_meeting(clock: Clock) -> None:
    faults = Faults()
    for now in range(12):
        clock.now = float(now)
        faults.see("foreign", "worker/1", "it is foreign")
        faults.see("taken", "worker/0", "it is taken")
        assert faults.stands() is (now > 10)
    faults.clear("foreign", "worker/1")
    assert not faults.stands(), "a taken port may become free"
    for now in range(12, 122):
        clock.now = float(now)
        faults.see("taken", "worker/0", "it is taken")
        assert faults.stands() is (now > 120)


def test_the_gravest_fault_of_a_task_is_named_with_its_latest_words(clock: Clock) -> None:
    faults = Faults()
    faults.see("taken", "worker/1", "its port is taken")
    faults.see("foreign", "worker/1", "it is foreign")
    faults.see("taken", "worker/2", "its port is taken")
    faults.see("foreign", "worker/1", "it is still foreign")
    assert faults.gravest() == {
        "worker/1": Problem("foreign", "worker/1", "it is still foreign"),
        "worker/2": Problem("taken", "worker/2", "its port is taken"),
    }
    clock.now = 6.0
    assert faults.gravest() == {}
