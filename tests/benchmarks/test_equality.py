from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import equality
from benchmarks.__main__ import main
from tfdist.errors import ConfigError


def test_differences_are_relative_to_the_way_each_is_compared_with() -> None:
    losses = {way.name: [2.0, 4.0] for way in equality.WAYS}
    losses["2 workers"] = [2.0, 4.4]
    losses["mirrored, plain"] = [1.0, 4.0]
    found = {name: list(np.round(d, 9)) for name, d in equality.differences(losses).items()}
    assert found == {
        "one device, nudged / one device": [0.0, 0.0],
        "mirrored, 2 replicas / one device": [0.0, 0.0],
        "2 workers / one device": [0.0, 0.1],
        "2 workers, plain / mirrored, plain": [1.0, 0.0],
    }


@pytest.mark.parametrize(("steps", "batch"), [(0, 32), (20, 3), (20, 0)])
def test_what_cannot_be_halved_is_refused_before_anything_runs(steps: int, batch: int) -> None:
    with pytest.raises(ConfigError, match="allowed: one step or more of an even number"):
        equality.measure(steps, batch, 0.01)


def test_what_was_measured_is_printed_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measuring itself takes minutes: docs/equality.md has the figures."""
    asked = []

    def measure(*arguments: object) -> dict[str, list[float]]:
        asked.append(arguments)
        return {way.name: [2.0, 3.0, 4.0 * (1 + 1e-6 * way.nudged)] for way in equality.WAYS}

    monkeypatch.setattr(equality, "measure", measure)
    plot, losses = tmp_path / "plot.png", tmp_path / "losses.json"
    options = ["--steps", "3", "--dtype", "float64", "--plot", str(plot), "--json", str(losses)]
    assert main(["equality", *options]) == 0
    assert asked == [(3, 32, 0.01, "float64")]
    printed = capsys.readouterr().out
    assert "3 steps of 32, float64, rate 0.01" in printed
    assert re.search(r"one device, nudged / one device +0.0e\+00 +0.0e\+00 +1.0e-06", printed)
    assert plot.read_bytes()[:4] == b"\x89PNG"
    assert json.loads(losses.read_text())["2 workers"] == [2.0, 3.0, 4.0]
