"""A worker whose peer is killed ends, and names it."""

from __future__ import annotations

import pytest

from benchmarks import loss
from benchmarks.loss import Loss


def test_the_summary_counts_those_that_are_right_and_soon():
    found = [Loss(0.1, 138, True), Loss(3.0, 138, True), Loss(0.2, 1, True), Loss(0.3, 138, False)]
    text = loss.summary(found)
    assert text.startswith("named, with exit code 138, in less than 2 s: 1 of 4; median 0.30 s")
    assert text.endswith("longest 3.00 s")


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.parametrize("transport", ["auto", "ring"])
def test_a_killed_peer_is_named(transport):
    (found,) = loss.measure(1, transport, say=lambda line: None)
    assert found.code == 138 and found.names_peer
