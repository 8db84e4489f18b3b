"""The trainer program, in one process."""

import dataclasses
import json
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from tests import forked
from tfdist.cluster import Cluster
from tfdist.errors import ConfigError

PLAIN = """
import sys
import numpy as np, keras
assert "tfdist" not in sys.modules
model = keras.models.load_model(sys.argv[1])
np.save(sys.argv[3], model.predict(np.load(sys.argv[2]), verbose=0))
assert model.optimizer.iterations > 0
assert "tfdist" not in sys.modules
"""


def settings(output):
    return {
        "strategy": "mirrored",
        "model": "small_cnn",
        "image_size": 16,
        "epochs": 2,
        "per_replica_batch": 16,
        "base_learning_rate": 0.5,
        "synchronized_batch_norm": True,
        "output_dir": str(output),
        "checkpoint_dir": str(output / "checkpoints"),
    }


@pytest.fixture(scope="module")
def finished(devices, tmp_path_factory):
    from tfdist.programs import train as run

    output = tmp_path_factory.mktemp("run")
    options = run.TrainOptions(**settings(output))
    return run.train(Cluster.local(), options), output


def test_it_ends_with_a_table(finished):
    summary, output = finished
    text = str(summary)
    for row in ("test accuracy", "images per second", "parameters", "model"):
        assert row in text
    # The plan was printed at the start; the file has both.
    written = (output / "summary.txt").read_text()
    for row in ("global batch", "learning rate"):
        assert row not in text and row in written
    assert str(output / "model.keras") in text
    assert summary.replicas == 4


def test_the_speed_of_a_single_step_is_not_told(finished):
    summary, _ = finished
    text = str(dataclasses.replace(summary, images_per_second=0.0))
    assert "images per second  not measured in one step" in text


def test_plan_and_history_are_saved_beside_the_model(finished):
    summary, output = finished
    assert json.loads((output / "plan.json").read_text())["global_batch"] == 64
    history = json.loads((output / "history.json").read_text())
    assert len(history["val_accuracy"]) == 2
    assert history["val_accuracy"][-1] == summary.metrics["val_accuracy"]


def test_tensorboard_has_the_figures_of_each_epoch(finished):
    import tensorflow as tf
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, output = finished
    board = EventAccumulator(str(output / "tensorboard"), size_guidance={"tensors": 0})
    board.Reload()
    history = json.loads((output / "history.json").read_text())
    values = [float(tf.make_ndarray(e.tensor_proto)) for e in board.Tensors("val_accuracy")]
    assert values == pytest.approx(history["val_accuracy"])
    assert {"loss", "images_per_second", "input_seconds", "learning_rate"} <= set(
        board.Tags()["tensors"]
    )


def test_plain_keras_loads_the_model_and_predicts_the_same(finished, tmp_path):
    import keras

    _, output = finished
    images = np.random.default_rng(0).normal(size=(8, 16, 16, 3)).astype("float32")
    np.save(tmp_path / "images.npy", images)
    arguments = [output / "model.keras", tmp_path / "images.npy", tmp_path / "plain.npy"]
    subprocess.run(
        [sys.executable, "-c", PLAIN, *map(str, arguments)], check=True, timeout=120, cwd=tmp_path
    )
    here = keras.models.load_model(output / "model.keras").predict(images, verbose=0)
    np.testing.assert_array_equal(np.load(tmp_path / "plain.npy"), here)


def test_going_on_with_fewer_replicas_says_what_changes(finished, capsys):
    """The last test of this run: it changes what the run has left."""
    from tfdist.programs import train as run

    _, output = finished
    options = run.TrainOptions(**settings(output) | {"strategy": "one_device", "epochs": 3})
    summary = run.train(Cluster.local(), options)
    printed = capsys.readouterr()
    assert "changed: global batch: 64 = 16 x 4 replicas before, 16 = 16 x 1 replicas" in printed.out
    assert "changed: learning rate: 0.125 = 0.5 for 256, linear before, 0.03125" in printed.out
    assert "epoch 3, step 0; now replicas 4 to 1" in printed.err
    assert "global batch 64 to 16 (the rate is as compiled now" in printed.err
    # Two epochs of 23 steps were done; the schedule continues after two of 93, and ends at its end.
    import keras

    model = keras.models.load_model(output / "model.keras")
    steps = int(model.optimizer.iterations)
    assert abs(steps - summary.plan.total_steps) <= 4
    assert json.loads((output / "plan.json").read_text())["global_batch"] == 16


def test_what_the_trainer_is_told_arrives(devices):
    """A flag that nobody reads would train something else without a word."""
    from tfdist import data
    from tfdist.programs import train as run
    from tfdist.strategy.build import build_strategy

    given = {
        "transport": "tensorflow",
        "wire_dtype": "bfloat16",
        "accumulate_steps": 2,
        "local_steps": 1,
        "outer_learning_rate": 1.0,
        "outer_momentum": 0.0,
    }
    source = data.load("digits", image_size=8, channels=3, seed=0)
    strategy = build_strategy("mirrored", Cluster.local(), devices=devices[:2])
    options = run.TrainOptions(model="small_cnn", image_size=8, **given)
    trainer = run.make_trainer(options, source, run.make_plan(options, source, 2), strategy)
    assert {name: getattr(trainer._options, name) for name in given} == given
    for other, message in (
        ({"local_steps": 4}, r"Trainer\(local_steps\): 4 is given; allowed: workers with one"),
        ({"outer_learning_rate": 0.7}, r"Trainer\(local_steps\): 1 is given, with an outer_"),
        ({"outer_momentum": 0.9}, r"Trainer\(local_steps\): 1 is given, with an outer_"),
    ):
        options = run.TrainOptions(model="small_cnn", image_size=8, **other)
        plan = run.make_plan(options, source, 2)
        with pytest.raises(ConfigError, match=message):
            run.make_trainer(options, source, plan, strategy)


@pytest.mark.parametrize("name", ["resnet5", "none.keras"])
def test_a_model_that_there_is_not_is_told_before_the_data_are_there(tmp_path, monkeypatch, name):
    from tfdist.programs import train as run

    monkeypatch.setattr(run, "open_source", lambda options: pytest.fail("the data were prepared"))
    options = run.TrainOptions(model=name, output_dir=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"train\(--model\): "):
        run.train(Cluster.local(), options)
    assert not (tmp_path / "run").exists()


def test_a_smoke_run_tries_everything_and_leaves_nothing(devices, tmp_path, monkeypatch):
    from tfdist.programs import train as run

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = []
    monkeypatch.setattr(run.saved_model, "save", lambda *a: seen.extend(a[-1].rglob("*")))
    options = run.TrainOptions(
        strategy="one_device", model="small_cnn", image_size=16, epochs=90, smoke=True
    )
    summary = run.train(Cluster.local(), options)
    assert (summary.plan.total_steps, "val_loss" in summary.metrics) == (3, True)
    assert "checkpoint-0000000003.tfdist" in {path.name for path in seen}
    assert list(tmp_path.iterdir()) == []
    assert summary.model_path is None


OWN_DATA = """
import numpy as np

def data():
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, 192)
    images = (draw.integers(0, 80, (192, 8, 8)) + 80 * labels[:, None, None]).astype("uint8")
    return (images[:128], labels[:128]), (images[128:], labels[128:])
"""


@pytest.mark.long
def test_data_of_a_function_is_trained_on_and_evaluated(devices, tmp_path, monkeypatch):
    from tfdist.programs import inference
    from tfdist.programs import train as run

    (tmp_path / "own_data_of_a_test.py").write_text(OWN_DATA)
    monkeypatch.chdir(tmp_path)
    options = settings(tmp_path / "run") | {"dataset": "own_data_of_a_test:data", "epochs": 9}
    summary = run.train(Cluster.local(), run.TrainOptions(**options))
    assert summary.dataset == "own_data_of_a_test:data"
    assert summary.metrics["val_accuracy"] > 0.9
    found = inference.evaluate(str(tmp_path / "run"), None, None, 32)
    assert found["accuracy"] == pytest.approx(summary.metrics["val_accuracy"], abs=1e-6)
    assert found["loss"] == pytest.approx(summary.metrics["val_loss"], rel=1e-4)


def test_an_output_directory_that_cannot_be_written_is_refused_first(tmp_path):
    from tfdist.programs import train as run

    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="output_dir"):
        run.train(Cluster.local(), run.TrainOptions(output_dir=str(tmp_path / "file" / "below")))


@pytest.mark.cluster
def test_workers_read_one_copy_on_their_own_disk_and_learn_the_same(tmp_path):
    from PIL import Image

    from tfdist.programs import train as run

    draw = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for label in ("cat", "dog"):
            folder = tmp_path / "photos" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (16, 16, 3)).astype("uint8")
                Image.fromarray(pixels).save(folder / f"{number}.png")
    flags = {"model": "small_cnn", "dataset": f"folder:{tmp_path / 'photos'}", "image_size": 16}
    flags |= {"epochs": 2, "base_learning_rate": 0.1, "synchronized_batch_norm": True}
    command = [sys.executable, "-m", "tfdist", "launch", "--workers", "2"]
    command += [*forked.python(), "-m", "tfdist", "train", "--per-replica-batch=4"]
    command += [
        f"--{name}" if value is True else f"--{name}={value}" for name, value in flags.items()
    ]
    command += [f"--stage-dir={tmp_path / 'local'}", f"--output-dir={tmp_path / 'staged'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (copy,) = (path for path in (tmp_path / "local").iterdir() if path.is_dir())
    assert len([*copy.rglob("*.png")]) == 32
    alone = flags | {"strategy": "one_device", "per_replica_batch": 8}
    run.train(Cluster.local(), run.TrainOptions(**alone, output_dir=str(tmp_path / "alone")))
    staged, plain = (
        json.loads((tmp_path / name / "history.json").read_text()) for name in ("staged", "alone")
    )
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert staged[name] == pytest.approx(plain[name], rel=1e-4)
