"""The variables of the environment that the ring reads."""

from __future__ import annotations

import pytest

from tfdist.collectives.ring import wiring
from tfdist.errors import ConfigError


def test_how_long_a_silent_worker_is_waited_for(monkeypatch):
    assert wiring._stall_seconds() == 600
    monkeypatch.setenv("TFDIST_RING_STALL", "inf")
    assert wiring._stall_seconds() == float("inf")


@pytest.mark.parametrize("given", ["0", "-3", "soon", "nan"])
def test_what_is_no_time_is_refused(monkeypatch, given):
    monkeypatch.setenv("TFDIST_RING_STALL", given)
    with pytest.raises(ConfigError, match=f"TFDIST_RING_STALL: '{given}' is given; allowed"):
        wiring._stall_seconds()
