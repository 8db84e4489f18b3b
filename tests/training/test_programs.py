"""Programs after keras.io's examples give through the Trainer what plain Keras gives.

On one device bit for bit. On two replicas sums over a batch are made of two partial sums, so the
last places differ: 1e-5 of the largest value is allowed. Programs in which an optimizer blows
rounding up compute in float64 (see docs/programs.md), and keep to the same tolerance.

By default a short selection; all of it with TFDIST_CONFORMANCE=full.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.training.conformance.cell import read_cell
from tests.training.conformance.compare import differences
from tests.training.conformance.launch import Run
from tests.training.conformance.plan import reference
from tests.training.programs.all_programs import PROGRAMS
from tests.training.programs.table import MODULE, PATIENCE, STRATEGIES

FULL = os.environ.get("TFDIST_CONFORMANCE") == "full"
# Small, and of many kinds: own steps, two optimizers, a refusal, numbers that must differ.
SHORT = (
    "siamese_network",
    "vae",
    "wgan_gp",
    "collaborative_filtering_for_movielens",
)
SELECTED = tuple(PROGRAMS) if FULL else SHORT
PLACES = [
    "one_device",
    "mirrored",
    *([pytest.param("multi_worker_mirrored", marks=pytest.mark.cluster)] if FULL else []),
]


class Places:
    """Runs the selected programs in all places, some of them at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[Run] = []
        self._pool = ThreadPoolExecutor(max_workers=2)
        strategies = [getattr(place, "values", (place,))[0] for place in PLACES]
        wanted = dict.fromkeys(
            key
            for strategy in strategies
            for row in PROGRAMS.values()
            for key in (("tfdist", strategy), reference(row, strategy))
        )
        self._reports = {key: self._pool.submit(self._run, key) for key in wanted}

    def _run(self, key: tuple[str, str]) -> str:
        run = Run(self._folder / "-".join(key), *key, self._programs(key), module=MODULE)
        self._running.append(run)
        try:
            run.wait(PATIENCE)
        finally:
            run.stop()
        return run.report()

    def cell(self, key: tuple[str, str], name: str, worker: int = 0):
        report = self._reports[key].result()
        try:
            return read_cell(self._folder / "-".join(key) / str(worker) / name)
        except FileNotFoundError:
            pytest.fail(f"{name} did not finish\n{report}")

    def stop(self) -> None:
        """Ends what still runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for run in self._running:
            run.stop()
        self._pool.shutdown()

    @staticmethod
    def _programs(key: tuple[str, str]) -> list[str]:
        if key[0] == "tfdist":
            return list(SELECTED)
        return [
            name
            for name in SELECTED
            if key in {reference(PROGRAMS[name], strategy) for strategy in STRATEGIES}
        ]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    made = Places(tmp_path_factory.mktemp("programs"))
    yield made
    made.stop()


@pytest.mark.parametrize("program", SELECTED)
@pytest.mark.parametrize("strategy", PLACES)
def test_program(places, program, strategy):
    row = PROGRAMS[program]
    values, error = places.cell(("tfdist", strategy), program)
    if strategy in row.refused:
        assert error is not None, f"{strategy} accepted {row.path}"
        assert error["type"] == "ConfigError", error["traceback"]
        assert row.refused[strategy] in error["message"]
        assert "\n" not in error["message"]
        assert not values
        return
    assert error is None, error["traceback"]
    expected, problem = places.cell(reference(row, strategy), program)
    assert problem is None, problem["traceback"]
    apart = differences(expected, values, row.only or None)
    allowed = row.one_device if strategy == "one_device" else row.tolerance
    far = {name: by for name, by in apart.items() if by > allowed}
    if strategy in row.differs:
        assert far, "it is equal now: say so in the table"
    else:
        assert not far
    if strategy == "multi_worker_mirrored":
        other, error = places.cell(("tfdist", strategy), program, worker=1)
        assert error is None, error["traceback"]
        assert not {name: by for name, by in differences(values, other).items() if by}


def test_every_module_is_in_the_table_and_every_path_is_named_once():
    paths = [program.path for program in PROGRAMS.values()]
    assert len(set(paths)) == len(paths) >= 25
    assert set(SHORT) <= set(PROGRAMS)
