"""What a pipeline delivers by stage, compared with what steps take, and which stage is slow."""

from __future__ import annotations

import json

import pytest

from tfdist.benchmark import input as pipeline
from tfdist.benchmark.input import ADVICE, Stage
from tfdist.cli import main
from tfdist.errors import ConfigError

STAGES = [Stage("read", 8000.0), Stage("decode", 1000.0), Stage("augment", 900.0)]


def test_the_slowest_stage_is_the_one_that_adds_most():
    assert pipeline.slowest(STAGES).name == "decode"
    assert pipeline.slowest(STAGES[:1]).name == "read"


def test_the_verdict_says_whether_steps_wait_and_what_to_change():
    assert "delivers 2.0 x what the steps take" in pipeline.verdict(STAGES, 450.0)
    said = pipeline.verdict(STAGES, 1800.0)
    assert said.startswith("the pipeline delivers 50 % of what the steps take (1,800 examples/s)")
    assert said.endswith(f"slowest is decode: {ADVICE['decode']}")
    assert pipeline.table(STAGES, 450.0).splitlines()[-1].split() == [
        *("augment", "900", "1111.1", "2.0", "x")
    ]


def test_the_stages_of_the_digits_are_measured(tmp_path, capsys):
    files = {name: tmp_path / name for name in ("input.json", "input.png")}
    code = main(
        ["bench", "input", "--global-batch", "64", "--need", "1000", "--seconds", "0.2"]
        + ["--json", str(files["input.json"]), "--plot", str(files["input.png"])]
    )
    said = capsys.readouterr().out
    assert code == 0, said
    stages = json.loads(files["input.json"].read_text())["stages"]
    assert list(stages) == ["memory", "augment", "batch", "transfer"]
    assert all(rate > 0 for rate in stages.values())
    assert "the pipeline delivers" in said
    assert files["input.png"].stat().st_size > 10_000


def test_a_folder_is_read_and_decoded(tmp_path):
    import numpy as np
    import tensorflow as tf

    import tfdist

    for split in ("train", "test"):
        for label in "ab":
            folder = tmp_path / split / label
            folder.mkdir(parents=True)
            for number in range(3):
                image = np.full((12, 10, 3), number, np.uint8)
                (folder / f"{number}.png").write_bytes(tf.io.encode_png(image).numpy())
    source = tfdist.data.load(f"folder:{tmp_path}", image_size=8)
    stages = source.stages(global_batch=4)
    assert list(stages) == ["read", "decode", "augment", "batch"]
    assert next(iter(stages["read"]))[0].dtype == tf.string
    assert next(iter(stages["decode"]))[0].shape == (12, 10, 3)
    assert next(iter(stages["augment"]))[0].shape == (8, 8, 3)
    assert next(iter(stages["batch"]))[0].shape == (4, 8, 8, 3)


def test_what_has_no_files_has_no_stages():
    import tfdist

    with pytest.raises(ConfigError, match="synthetic has no files"):
        tfdist.data.load("synthetic", image_size=8).stages(global_batch=4)


@pytest.mark.parametrize(
    "arguments", ["--need 0", "--need nan", "--global-batch 0", "--model vgg", "--seconds x"]
)
def test_bad_arguments_are_one_line(arguments, capsys):
    assert main(["bench", "input", *arguments.split()]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
