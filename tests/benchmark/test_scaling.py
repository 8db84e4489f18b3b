"""The figures of scaling and of batch sizes, from times that are given and that are measured."""

from __future__ import annotations

import csv
import itertools
import json
import re
import subprocess
import sys

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
        setting.per_replica(3)


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
        "scaling --global-batch 100 --counts 1 3",
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
def test_the_tasks_of_a_cluster_are_measured_once_each(tmp_path):
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "tfdist"]
    setting = ["--model", "small_cnn", "--global-batch", "16", "--image-size", "16", "--steps", "3"]
    done = subprocess.run(
        [*command, "launch", "--workers", "2", "--", *command, "bench", "scaling", *setting]
        + ["--json", str(file)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worker/0 | strong scaling, small_cnn" in done.stdout
    assert "worker/1 |" not in done.stdout
    one, two = json.loads(file.read_text())["points"]
    assert (one["count"], one["batch"], two["count"], two["batch"]) == (1, 16, 2, 16)
    assert one["efficiency"] == 1 and 0 < two["efficiency"] < 3


@pytest.mark.parametrize(
    ("arguments", "cluster", "message"),
    [
        ("--counts 1 2", {"worker": 2}, "--counts is given in a cluster of 2 workers (TF_CONFIG)"),
        ("--of replicas", {"worker": 2}, "--of is given in a cluster of 2 workers"),
        ("--steps 3", {"chief": 1, "worker": 1, "ps": 1}, "the cluster has ps tasks; allowed: a"),
    ],
)
def test_what_a_cluster_cannot_measure_is_refused(arguments, cluster, message, monkeypatch, capsys):
    ports = itertools.count(2000)
    jobs = {
        role: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for role, count in cluster.items()
    }
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": task}))
    assert main(["bench", "scaling", *arguments.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tfdist: bench scaling: {message}") and said.count("\n") == 1


def test_on_a_terminal_the_table_fits_into_80_columns(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    setting = Setting(batch=128)
    cells = scaling.cells(setting, [ONE, FOUR])
    said = re.sub("\x1b\\[[0-9;]*m", "", scaling.table(setting, [ONE, FOUR]))
    assert "…" not in said and max(map(len, said.splitlines())) <= 80
    assert all(cell in said for row in cells[1:] for cell in row)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    blank, first, *lines = scaling.table(setting, [ONE, FOUR]).splitlines()
    assert (blank, first) == ("", scaling.title(setting))
    assert [line.split() for line in lines[1:]] == [" ".join(row).split() for row in cells[1:]]


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
