"""Programs after keras.io's examples give through the Trainer what plain Keras gives.

On one device bit for bit. On two replicas sums over a batch are made of two partial sums, so the
last places differ: 1e-5 of the largest value is allowed. Programs in which an optimizer blows
rounding up compute in float64 (see docs/programs.md), and keep to the same tolerance.

By default a short selection; all of it with TFDIST_CONFORMANCE=full.
"""

from __future__ import annotations

import os

import pytest

from tests.training.conformance.cell import read_cell
from tests.training.conformance.compare import differences
from tests.training.conformance.plan import plan, reference
from tests.training.conformance.runs import Runs
from tests.training.programs.all_programs import PROGRAMS
from tests.training.programs.table import MODULE

FULL = os.environ.get("TFDIST_CONFORMANCE") == "full"
# Small, and with numbers that must differ.
SHORT = ("collaborative_filtering_for_movielens",)
SELECTED = tuple(PROGRAMS) if FULL else SHORT
PLACES = [
    "one_device",
    "mirrored",
    *([pytest.param("multi_worker_mirrored", marks=pytest.mark.cluster)] if FULL else []),
]


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """Reads what came of a program in a place; all places run at once, as far as there is room."""
    strategies = [getattr(place, "values", (place,))[0] for place in PLACES]
    cells = [(name, strategy) for name in SELECTED for strategy in strategies]
    runs = Runs(tmp_path_factory.mktemp("programs"), plan(cells, PROGRAMS), module=MODULE)

    def read(key: tuple[str, str], name: str, worker: int = 0):
        try:
            return read_cell(runs.folder(*key, worker) / name)
        except FileNotFoundError:
            pytest.fail(f"{name} did not finish\n{runs.report(*key)}")

    yield read
    runs.stop()


@pytest.mark.parametrize("program", SELECTED)
@pytest.mark.parametrize("strategy", PLACES)
def test_program(cell, program, strategy):
    row = PROGRAMS[program]
    values, error = cell(("tfdist", strategy), program)
    if strategy in row.refused:
        assert error is not None, f"{strategy} accepted {row.path}"
        assert error["type"] == "ConfigError", error["traceback"]
        assert row.refused[strategy] in error["message"]
        assert "\n" not in error["message"]
        assert not values
        return
    assert error is None, error["traceback"]
    expected, problem = cell(reference(row, strategy), program)
    assert problem is None, problem["traceback"]
    apart = differences(expected, values, row.only or None)
    allowed = row.one_device if strategy == "one_device" else row.tolerance
    far = {name: by for name, by in apart.items() if by > allowed}
    if strategy in row.differs:
        assert far, "it is equal now: say so in the table"
    else:
        assert not far
    if strategy == "multi_worker_mirrored":
        other, error = cell(("tfdist", strategy), program, worker=1)
        assert error is None, error["traceback"]
        assert not {name: by for name, by in differences(values, other).items() if by}


def test_every_module_is_in_the_table_and_every_path_is_named_once():
    paths = [program.path for program in PROGRAMS.values()]
    assert len(set(paths)) == len(paths) >= 25
    assert set(SHORT) <= set(PROGRAMS)
