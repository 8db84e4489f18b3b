"""What grows is listed with what it costs; memory and time are those of real workers."""

from __future__ import annotations

import pytest

from benchmarks import growth
from benchmarks.growth import Cost, Training


def test_the_table_lists_the_overhead_of_each_size():
    costs = [(Training(weights=1_000_000), Cost(0.010, 0.008, 500_000_000, 1_500_000))]
    heading, line = growth.table("weights", costs).splitlines()
    assert heading.split() == ["weights", "ms", "a", "step", "alone", "overhead", "MB"] + [
        "grown",
        "by",
    ]
    assert line.split() == ["1,000,000", "10.000", "8.000", "2.000", "500", "1.5"]


@pytest.mark.cluster
@pytest.mark.long
def test_a_size_is_trained_together_and_alone(monkeypatch):
    monkeypatch.setitem(growth.SWEEPS, "steps", (Training(weights=64, examples=640, steps=20),))
    ((training, cost),) = growth.measure("steps")
    assert training.steps == 20
    assert cost.step > 0 and cost.alone > 0
    assert cost.memory > 100e6
    assert growth.line("steps", [(training, cost)]).startswith("steps 20: ")
