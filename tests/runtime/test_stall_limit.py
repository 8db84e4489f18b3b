"""For how long a silent task is waited for."""

from __future__ import annotations

import pytest

from tfdist.errors import ConfigError
from tfdist.runtime.stall_limit import patience, stall_seconds


def test_how_long_a_silent_task_is_waited_for(monkeypatch):
    monkeypatch.delenv("TFDIST_STALL", raising=False)
    assert stall_seconds() == 600
    monkeypatch.setenv("TFDIST_STALL", "inf")
    assert stall_seconds() == float("inf")
    assert patience("training", 6.0) == 6.0
    assert patience("tracing", 6.0) == 606.0
    assert patience("serving", 6.0) == float("inf")


@pytest.mark.parametrize("given", ["0", "-3", "soon", "nan"])
def test_what_is_no_time_is_refused(monkeypatch, given):
    monkeypatch.setenv("TFDIST_STALL", given)
    with pytest.raises(ConfigError, match=f"TFDIST_STALL: '{given}' is given; allowed"):
        stall_seconds()
