from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tfdist.benchmark import equality
from tfdist.cli.bench import main
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


def test_two_replicas_of_a_resnet50_equal_one_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command's own path, for the two ways that matter most and few steps."""
    kept = [way for way in equality.WAYS if way.name in ("one device", "mirrored, 2 replicas")]
    monkeypatch.setattr(equality, "WAYS", tuple(kept))
    monkeypatch.setattr(equality, "PAIRS", (("mirrored, 2 replicas", "one device"),))
    plot = tmp_path / "plot.png"
    options = ["--steps", "3", "--global_batch", "8", "--dtype", "float64", "--plot", str(plot)]
    assert main(["equality", *options]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "mirrored" in line]
    # In float64 at a usual rate: what is left can be rounding only if it is this small.
    assert float(line.split()[-1]) < 1e-9, line
    assert plot.read_bytes()[:4] == b"\x89PNG"
