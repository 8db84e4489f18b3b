"""The evaluator: what it makes of the checkpoints of a job."""

import json
import subprocess
import sys

import pytest

from tests import forked
from tfdist.cluster import Cluster
from tfdist.errors import ConfigError

# As TFJob writes it: the evaluator is not in the cluster.
EVALUATOR = Cluster.from_tf_config(
    {
        "cluster": {"worker": ["a:1", "b:1"]},
        "task": {"type": "evaluator", "index": 0},
    }
)
FLAGS = {
    "model": "small_cnn",
    "image_size": 16,
    "epochs": 2,
    "per_replica_batch": 16,
    "base_learning_rate": 0.5,
}


@pytest.mark.long
def test_it_comes_to_what_training_came_to(devices, tmp_path, capsys):
    from tfdist.programs import evaluator, train

    output = str(tmp_path)
    flags = {**FLAGS, "output_dir": output, "checkpoint_dir": str(tmp_path / "checkpoints")}
    train.train(Cluster.local(), train.TrainOptions(strategy="mirrored", **flags))
    history = json.loads((tmp_path / "history.json").read_text())
    options = train.TrainOptions(strategy="multi_worker_mirrored", **flags)
    results = evaluator.evaluate(EVALUATOR, options)
    assert [(line["epoch"], line["step"]) for line in results] == [(1, 0), (2, 0)]
    for name in ("loss", "accuracy"):
        assert [line[name] for line in results] == history[f"val_{name}"]
    lines = (tmp_path / "evaluation.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == results
    assert capsys.readouterr().out.count(f"accuracy {results[1]['accuracy']:.4f}") >= 1
    assert list((tmp_path / "evaluation").glob("events.*"))
    # Started again, it has nothing to do.
    assert evaluator.evaluate(EVALUATOR, options) == results
    assert (tmp_path / "evaluation.jsonl").read_text().splitlines() == lines
    with pytest.raises(ConfigError, match="is of another model"):
        evaluator.evaluate(
            EVALUATOR,
            train.TrainOptions(
                **{**flags, "model": "resnet50", "image_size": 32, "output_dir": None}
            ),
        )


def test_it_needs_checkpoints():
    from tfdist.programs import evaluator, train

    with pytest.raises(ConfigError, match="^checkpoint_dir: evaluator/0 has nothing to evaluate"):
        evaluator.evaluate(EVALUATOR, train.TrainOptions(**FLAGS))


@pytest.mark.cluster
def test_it_ends_with_the_job(tmp_path):
    flags = {**FLAGS, "strategy": "auto", "output_dir": tmp_path}
    flags["checkpoint_dir"] = tmp_path / "checkpoints"
    command = [*forked.python(), "-m", "tfdist", "train"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    done = subprocess.run(
        [sys.executable, "-m", "tfdist", "launch", "--workers", "2", "--evaluator", "1", "--"]
        + command,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "evaluation.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    assert "evaluator/0 | checkpoint-" in done.stdout
