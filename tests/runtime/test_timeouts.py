"""How long a task waits for others to start, and for a silent one."""

from __future__ import annotations

import pytest

from tfdist.errors import ConfigError
from tfdist.runtime.timeouts import patience, stall_seconds, wait_seconds


def test_how_long_a_silent_task_is_waited_for(monkeypatch):
    monkeypatch.delenv("TFDIST_STALL", raising=False)
    assert stall_seconds() == 600
    monkeypatch.setenv("TFDIST_STALL", "inf")
    assert stall_seconds() == float("inf")
    assert patience("training", 6.0) == 6.0
    assert patience("tracing", 6.0) == 606.0
    assert patience("serving", 6.0) == float("inf")


@pytest.mark.parametrize("given", ["0", "-3", "soon", "nan"])
def test_a_stall_limit_that_is_not_a_time_is_refused(monkeypatch, given):
    monkeypatch.setenv("TFDIST_STALL", given)
    with pytest.raises(ConfigError, match=f"TFDIST_STALL: '{given}' is given; allowed"):
        stall_seconds()


def test_the_wait_comes_from_the_environment(monkeypatch):
    monkeypatch.delenv("TFDIST_WAIT", raising=False)
    assert wait_seconds() == 300.0
    monkeypatch.setenv("TFDIST_WAIT", "12.5")
    assert wait_seconds() == 12.5


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_wait_that_is_not_a_time_is_refused(monkeypatch, text):
    monkeypatch.setenv("TFDIST_WAIT", text)
    with pytest.raises(ConfigError, match="TFDIST_WAIT"):
        wait_seconds()
