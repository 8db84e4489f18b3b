"""The table of accuracies says which options are within the exact one's spread."""

from __future__ import annotations

import pytest

from benchmarks import accuracy
from benchmarks.__main__ import main


def test_the_table_compares_means_with_the_exact_ones_range():
    found = {"exact": [0.8, 0.9], "near": [0.7, 0.95], "low": [0.5, 0.6], "high": [0.95, 0.97]}
    rows = [line.split() for line in accuracy.table(found).splitlines()[1:]]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("exact", "0.8500", "yes"),
        ("near", "0.8250", "yes"),
        ("low", "0.5500", "no"),
        ("high", "0.9600", "above"),
    ]


def test_one_seed_has_no_spread(capsys):
    assert main(["accuracy", "--seeds", "1", "--epochs", "3"]) == 2
    assert "2 seeds or more" in capsys.readouterr().err


def test_the_first_option_is_the_exact_one():
    assert next(iter(accuracy.OPTIONS.values())) == {}


@pytest.mark.cluster
@pytest.mark.long
def test_two_workers_train_with_each_option():
    found = accuracy.measure(1, 1, patience=300.0)
    assert list(found) == list(accuracy.OPTIONS)
    assert all(len(values) == 1 and 0 < values[0] <= 1 for values in found.values())
