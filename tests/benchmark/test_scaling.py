"""What is made of the times that training took with more workers, and that it is measured."""

from __future__ import annotations

import csv
import json

import pytest

from tfdist.benchmark import batch, scaling
from tfdist.benchmark.batch import Speed
from tfdist.benchmark.scaling import Point
from tfdist.benchmark.trial import Setting, make_model
from tfdist.cli import main
from tfdist.errors import ConfigError

ONE = Point(1, 32, step=0.1, compute=0.09, input=0.01, memory=10**9, examples=1600)
FOUR = Point(4, 128, step=0.2, compute=0.1, input=0.02, memory=10**9, examples=1600)


def test_efficiency_is_samples_over_those_of_as_many_single_ones():
    assert ONE.efficiency(ONE) == 1
    assert FOUR.speed == pytest.approx(640)
    assert FOUR.efficiency(ONE) == pytest.approx(640 / (4 * 320))
    assert FOUR.without_communication == pytest.approx(0.6)
    assert FOUR.epoch == pytest.approx(2.5)


def test_the_shares_of_a_step_add_up_to_it():
    for point in (ONE, FOUR):
        assert point.compute + point.wire + point.input == pytest.approx(point.step)


def test_a_global_batch_that_cannot_be_divided_is_refused():
    setting = Setting(batch=100, is_strong=True)
    assert setting.per_replica(4) == 25
    with pytest.raises(ConfigError, match=r"--global-batch\): 100 cannot be divided among 3"):
        scaling.measure(setting, [1, 3])


def test_the_recommended_batch_is_the_smallest_that_saturates():
    speeds = [Speed(2**n, step, 10**9) for n, step in enumerate((0.1, 0.11, 0.13, 0.2, 0.41))]
    assert [round(each.samples) for each in speeds] == [10, 18, 31, 40, 39]
    assert batch.recommended(speeds).batch == 8
    assert batch.table(speeds).splitlines()[4].endswith("<-")


def test_a_batch_is_not_tried_that_memory_has_no_room_for(monkeypatch):
    speeds = [Speed(64, 0.1, 4 * 10**9), Speed(128, 0.2, 6 * 10**9)]
    monkeypatch.setattr(batch, "available_bytes", lambda: 10**10)
    assert not batch._fits(speeds)
    monkeypatch.setattr(batch, "available_bytes", lambda: 2 * 10**10)
    assert batch._fits(speeds)


@pytest.mark.parametrize("name", ["os:nothing", "no_such_module:f", ":f", "os:getcwd"])
def test_a_function_that_makes_no_model_is_refused(name):
    with pytest.raises(ConfigError, match=r"^bench\(--model\): "):
        make_model(name, (8, 8, 3), 10)


@pytest.mark.parametrize(
    "arguments",
    [
        "scaling --counts 0",
        "scaling --steps 0",
        "scaling --model vgg",
        "scaling --per-replica-batch 8 --global-batch 8",
        "batch --limit 0",
        "batch --model vgg",
        "batch --base-learning-rate x",
    ],
)
def test_bad_arguments_are_one_line(arguments, capsys):
    assert main(["bench", *arguments.split()]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.cluster
@pytest.mark.long
def test_two_workers_are_measured(tmp_path, capfd):
    files = {name: str(tmp_path / name) for name in ("json", "csv", "plot.png")}
    setting = "--counts 1 2 --model small_cnn --per-replica-batch 8 --image-size 16 --steps 3"
    outputs = f"--json {files['json']} --csv {files['csv']} --plot {files['plot.png']}"
    code = main(["bench", "scaling", *setting.split(), *outputs.split()])
    said = capfd.readouterr().out
    assert code == 0, said
    with open(files["json"]) as file:
        one, two = json.load(file)["points"]
    assert (one["count"], two["count"]) == (1, 2)
    assert (one["batch"], two["batch"]) == (8, 16)
    assert one["wire"] == 0 and one["efficiency"] == 1
    assert 0 < two["efficiency"] < 3
    assert two["compute"] + two["wire"] + two["input"] >= 0.95 * two["step"]
    with open(files["csv"]) as file:
        assert [row["count"] for row in csv.DictReader(file)] == ["1", "2"]
    assert "weak scaling, small_cnn" in said
    assert (tmp_path / "plot.png").stat().st_size > 10_000


@pytest.mark.cluster
@pytest.mark.long
def test_batches_are_measured_and_one_is_recommended(tmp_path, capfd):
    file = tmp_path / "batch.json"
    setting = "--limit 2 --model small_cnn --image-size 16 --steps 2 --replicas 4"
    assert main(["bench", "batch", *setting.split(), "--json", str(file)]) == 0
    said = capfd.readouterr().out
    found = json.loads(file.read_text())
    assert [row["batch"] for row in found["batches"]] == [1, 2]
    assert found["recommended"] in (1, 2)
    assert f"learning rate {0.1 * 4 * found['recommended'] / 256:.4g} for" in said
