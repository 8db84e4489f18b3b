from __future__ import annotations

import pytest

from benchmarks import prediction
from benchmarks.__main__ import main
from benchmarks.prediction import Prediction
from tfdist.scaling.network import Link


def test_a_prediction_is_the_time_alone_and_the_ring():
    found = Prediction(2, 0.4, Link(0.001, 1e9), 100_000_000, 0.5)
    assert found.predicted.seconds == pytest.approx(0.4 + 0.002 + 0.1)
    assert found.error == pytest.approx(0.502 / 0.5 - 1)
    line = prediction.table([found]).splitlines()[-1]
    assert line.split() == ["2", "400.0", "1000.0", "1.00", "102.0", "502.0", "500.0", "+0.4"]


def test_one_worker_has_no_link():
    found = Prediction(1, 0.4, None, 100_000_000, 0.5)
    assert found.predicted.seconds == 0.4
    assert prediction.table([found]).splitlines()[-1].split() == [
        *("1", "400.0", "0.0", "400.0", "500.0", "-20.0")
    ]


@pytest.mark.parametrize("arguments", ["--workers 1 0 --rounds 1", "--workers 1 --rounds 0"])
def test_nothing_to_measure_is_refused(arguments, capsys):
    assert main(["prediction", *arguments.split()]) == 2
    assert "allowed: 1 or more of each" in capsys.readouterr().err


@pytest.mark.cluster
@pytest.mark.long
def test_two_workers_are_measured(monkeypatch):
    monkeypatch.setitem(prediction._STEPS, "small", 5)
    (found,) = prediction.measure([2], "small", 1)
    assert found.gradient_bytes == 4 * (16 * 64 + 64 + 64 * 10 + 10)
    assert found.link is not None and found.link.bandwidth > 0
    assert found.alone > 0 and found.measured > 0
    assert prediction.line(found).startswith("2 workers: predicted ")
