"""All workers name what differs before the first update, or it is put right."""

from __future__ import annotations

import inspect
import json
import random
import sys

import numpy as np
import pytest

from tests import forked
from tests.tasks import ROOT, Tasks


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What came of each case, on both workers; one pair runs them all."""
    folder = tmp_path_factory.mktemp("differences")
    with Tasks(folder, ["-m", "tests.training.differences", str(folder / "{index}.jsonl")]) as pair:
        pair.wait()
    found = []
    for worker in range(2):
        file = folder / f"{worker}.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        found.append({line["case"]: line for line in map(json.loads, lines)})
    return found, pair


def _cases():
    from tests.training.differences import CASES, chosen

    return {name: CASES[name][1] for name in chosen()}


CASES = _cases()


@pytest.mark.cluster
@pytest.mark.parametrize("name", CASES)
def test_two_workers_that_differ(name, results):
    found, pair = results
    assert all(name in lines for lines in found), f"not reached: {pair.text()}"
    chief, other = (lines[name] for lines in found)
    if not CASES[name]:
        assert chief["message"] == other["message"] == ""
        assert chief["weights"] == other["weights"] != ""
        return
    assert chief["message"] == other["message"], "every worker says the same"
    assert chief["message"].startswith(CASES[name])
    assert "\n" not in chief["message"]
    in_training = chief["message"].startswith(("epoch", "before"))
    assert chief["type"] == other["type"] == ("OutOfStepError" if in_training else "ConfigError")


@pytest.mark.cluster
def test_the_strategy_is_usable_to_the_end(results):
    assert results[1].wait() == [0, 0], results[1].text()


LONE = """
import os, sys
import keras, numpy as np
import tfdist
cluster = tfdist.Cluster.from_environment()
if HOW == "outside":
    strategy = tfdist.build_strategy("auto", cluster)
if HOW == "by hand":
    import tensorflow as tf
    scope = tf.distribute.MirroredStrategy(["CPU:0"]).scope()
    scope.__enter__()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
trainer = tfdist.Trainer(model)
if HOW == "evaluates":
    trainer.evaluate(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    sys.exit()
trainer.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
print("TRAINED")
"""


@pytest.mark.cluster
@pytest.mark.parametrize(
    "how",
    ["outside", *(pytest.param(how, marks=pytest.mark.long) for how in ("without", "by hand"))],
)
def test_each_worker_by_itself_is_refused(how, tmp_path):
    pair = Tasks(tmp_path, ["-c", LONE.replace("HOW", repr(how))])
    assert pair.wait() == [2, 2], pair.text()
    for worker, line in enumerate(pair.lines("Trainer(model)")):
        assert f"worker/{worker} of a cluster of 2" in line, pair.text()
        assert "build_strategy('multi_worker_mirrored')" in line
    assert pair.lines("TRAINED") == ["", ""]


@pytest.mark.cluster
def test_a_task_of_a_cluster_may_evaluate_by_itself(tmp_path):
    pair = Tasks(tmp_path, ["-c", LONE.replace("HOW", "'evaluates'")])
    assert pair.wait() == [0, 0], pair.text()


def test_a_model_outside_of_several_replicas_is_warned_of(devices, capsys):
    import keras
    import numpy as np

    import tfdist

    strategy = tfdist.build_strategy("mirrored", devices=devices[:2])
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    tfdist.Trainer(model).fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    said = capsys.readouterr().err
    assert "outside the scope of the MirroredStrategy of 2 replicas" in said
    del strategy


INITIAL = """
import hashlib, sys
import numpy as np
import tfdist
from tfdist.programs import train
class Trainer(train.Trainer):
    def fit(self, *args, **kwargs):
        weights = b"".join(np.asarray(w).tobytes() for w in self.model.get_weights())
        print("INITIAL", hashlib.sha256(weights).hexdigest(), flush=True)
        sys.exit()
train.Trainer = Trainer
options = train.TrainOptions(data_dir=sys.argv[1], model="small_cnn", strategy="one_device")
train.train(tfdist.Cluster.local(), options)
"""


@pytest.mark.cluster
def test_the_first_run_begins_as_the_second(tmp_path):
    """The first one prepares the data set, for which numbers are drawn."""
    found = []
    for _ in range(2):
        command = [sys.executable, "-c", INITIAL, str(tmp_path / "data")]
        done = forked.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT)
        found += [line for line in done.stdout.splitlines() if line.startswith("INITIAL")]
        assert done.returncode == 0, done.stderr
    assert len(found) == 2 and found[0] == found[1]


def test_preparing_data_leaves_the_random_numbers_as_they_are(tmp_path):
    import keras

    from tfdist import data

    drawn = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        data.load("digits", data_dir=tmp_path)
        drawn.append((random.random(), np.random.rand(), float(keras.random.uniform([]))))
    assert drawn[0] == drawn[1]


class Broken(Exception):
    """Stands for whatever ends a process."""


def test_data_that_shrank_in_mid_epoch_is_refused(devices, tmp_path):
    import keras

    import tfdist

    def train(rows, fault_at=None):
        strategy = tfdist.one_device_strategy(devices[0])
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")

        class Break(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                if batch == fault_at:
                    raise Broken

        trainer = tfdist.Trainer(model, checkpoint_dir=tmp_path, checkpoint_steps=1)
        data = np.ones((rows, 4), "float32")
        trainer.fit(data, data[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[Break()])
        return int(model.optimizer.iterations)

    with pytest.raises(Broken):
        train(32, fault_at=6)
    with pytest.raises(tfdist.ConfigError, match="batches, but had 8") as error:
        train(20)
    assert "after 6 of them" in str(error.value)
    assert train(32) == 16  # What was saved is as it was.


def description(model, **options):
    import tfdist
    from tfdist.training.agreement.description import describe_call
    from tfdist.training.options import TrainerOptions

    parameters = inspect.signature(tfdist.Trainer).parameters.values()
    given = {each.name: each.default for each in parameters if each.name != "model"} | options
    return describe_call(model, TrainerOptions(**given), {"data": np.ones(3)}, {})


def functional(width=8, skips=0):
    import keras

    inputs = keras.Input((8,))
    first = keras.layers.Dense(width)(inputs)
    second = keras.layers.Dense(8, activation=lambda x: x * 2)(first)
    outputs = keras.layers.Add()([(inputs, first)[skips], second])
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
    return model


def test_models_that_are_made_alike_are_described_alike():
    from tfdist.training.agreement.compare import first_difference

    first, second = description(functional()), description(functional())
    assert first_difference(first, second) is None
    assert len({name for name, _ in first}) == len(first), "no field has two values"


def test_a_difference_is_found_in_how_layers_are_connected():
    from tfdist.training.agreement.compare import first_difference

    found = first_difference(description(functional(8)), description(functional(8, skips=1)))
    assert found is not None
    assert found[1].endswith(".inputs")


def test_where_checkpoints_go_may_differ(tmp_path):
    from tfdist.training.agreement.compare import first_difference

    model = functional()
    here = description(model, checkpoint_dir=tmp_path / "a")
    there = description(model, checkpoint_dir=str(tmp_path / "b"), keep_checkpoints=5)
    assert first_difference(here, there) is None


@pytest.mark.parametrize("size", [7, 5_000, 100_003])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint16"])
def test_any_changed_value_changes_the_checksum(size, dtype):
    from tfdist.training.agreement.checksum import of_array

    generator = np.random.default_rng(size)
    array = generator.integers(0, 100, size).astype(dtype)
    before = of_array(array)
    assert before == of_array(array.copy())
    for place in (0, size // 2, size - 1, *generator.integers(0, size, 20)):
        changed = array.copy()
        changed[place] += 1
        assert of_array(changed) != before
    changed = array.copy()
    changed[[0, -1]] = array[-1], array[0] + (array[0] == array[-1])
    assert of_array(changed) != before
