"""All workers call the user's callbacks, but only the chief prints and writes files."""

from __future__ import annotations

import csv
import sys

import keras
import numpy as np
import pytest

import tfdist
from tfdist.errors import ConfigError
from tfdist.training.callbacks import callback_list, history_of


class OwnCheckpoint(keras.callbacks.ModelCheckpoint):
    pass


@pytest.fixture(scope="module")
def model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def made(model, callbacks=None, *, is_chief=True, verbose=0, **more):
    return callback_list(model, callbacks, is_chief=is_chief, verbose=verbose, **more)


def kinds(every):
    return [type(callback).__name__ for callback in every.callbacks]


def test_those_that_write_files_are_the_chiefs(model, tmp_path):
    given = [
        keras.callbacks.ModelCheckpoint(tmp_path / "model.keras"),
        keras.callbacks.EarlyStopping(),
        OwnCheckpoint(tmp_path / "own.keras"),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.LambdaCallback(),
        keras.callbacks.TensorBoard(tmp_path),
    ]
    assert made(model, given).callbacks == given
    assert made(model, given, is_chief=False).callbacks == [given[1], given[4]]
    assert all(callback.model is model for callback in (given[1], given[4]))


@pytest.mark.parametrize(
    ("verbose", "terminal", "wanted"),
    [(0, True, 0), (1, False, 1), (2, True, 2), ("auto", True, 1), ("auto", False, 2)],
)
def test_only_the_chief_prints_a_bar_on_a_terminal_and_lines_elsewhere(
    model, monkeypatch, verbose, terminal, wanted
):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    every = made(model, verbose=verbose, epochs=3, steps=7)
    assert kinds(every) == (["ProgbarLogger"] if wanted else [])
    assert every.params == {"verbose": wanted, "epochs": 3, "steps": 7}
    worker = made(model, is_chief=False, verbose=verbose, epochs=3, steps=7)
    assert kinds(worker) == []
    assert worker.params == {"verbose": 0, "epochs": 3, "steps": 7}


def test_what_each_worker_would_write_for_itself_is_refused(model, tmp_path):
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    for is_chief in (True, False):
        with pytest.raises(ConfigError, match=r"^callbacks: BackupAndRestore .*checkpoint_dir"):
            made(model, [backup], is_chief=is_chief)
    assert made(model, [backup], alone=True).callbacks == [backup]


def test_callbacks_may_come_as_one_or_nested_or_as_a_list_of_keras(model):
    one, two = keras.callbacks.LambdaCallback(), keras.callbacks.EarlyStopping()
    assert made(model, one).callbacks == [one]
    assert made(model, [[one], (two,)]).callbacks == [one, two]
    assert made(model, None).callbacks == made(model, []).callbacks == []
    whole = keras.callbacks.CallbackList([one, two], model=model)
    assert made(model, whole).callbacks == [one, two]
    assert made(model, whole, alone=True) is whole


def test_one_more_is_called_behind_the_users(model):
    order = []

    def telling(name):
        return keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: order.append(name))

    made(model, [telling("first"), telling("second")], added=[telling("last")]).on_epoch_end(0, {})
    assert order == ["first", "second", "last"]


def test_the_history_is_the_one_that_is_kept(model):
    every = made(model, add_history=True)
    every.on_train_begin()
    every.on_epoch_end(0, {"loss": 2.0})
    assert history_of(every).history == {"loss": [2.0]}
    users = keras.callbacks.History()
    assert history_of(made(model, [users])) is users
    assert history_of(made(model)).history == {}


def test_a_worker_that_is_not_the_chief_trains_without_a_file_or_a_line(
    devices, tmp_path, monkeypatch, capsys
):
    strategy = tfdist.mirrored_strategy(devices[:2])
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    trainer = tfdist.Trainer(model)
    monkeypatch.setattr(trainer._group, "is_chief", False)
    logger = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    x = np.ones((4, 1), "float32")
    trainer.fit(x, x, callbacks=[logger], verbose=1)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_a_tracker_is_made_on_the_chief_alone(monkeypatch):
    made = []

    def tracker():
        made.append(1)
        return keras.callbacks.TerminateOnNaN()

    cluster = {"worker": ["a:1", "b:1"]}
    for index in (1, 0):
        given = tfdist.Cluster.from_cluster_spec(cluster, task_type="worker", task_index=index)
        monkeypatch.setenv("TF_CONFIG", given.to_tf_config())
        assert isinstance(tfdist.on_chief(tracker), keras.callbacks.TerminateOnNaN) is (not index)
        assert len(made) == 1 - index
    with pytest.raises(ConfigError, match=r"on_chief\(callback\): 3 is given"):
        tfdist.on_chief(lambda: 3)


# ---- Keras' CSVLogger and History after a restart: whole, each epoch once ----

EPOCHS = 4


class Crash(keras.callbacks.Callback):
    """Raises in an epoch, as a killed job would end there."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise InterruptedError


@pytest.fixture(params=["one_device", "mirrored"])
def strategy(request, devices):
    return tfdist.build_strategy(
        request.param, devices=devices[: 1 + (request.param == "mirrored")]
    )


def train(strategy, folder, *more):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
    trainer = tfdist.Trainer(model, checkpoint_dir=folder / "saved")
    log = keras.callbacks.CSVLogger(str(folder / "log.csv"))
    callbacks = [log, *more]
    try:
        return trainer.fit(x, x.sum(1), batch_size=8, epochs=EPOCHS, callbacks=callbacks, verbose=0)
    finally:
        log.csv_file.close()  # As the end of a process does it.


def rows(folder):
    with (folder / "log.csv").open(newline="") as file:
        header, *lines = csv.reader(file)
    # Keras writes NA for the results of a validation that was not made.
    return [header, *([float(v.replace("NA", "nan")) for v in line] for line in lines)]


def same_rows(one, other):
    (header, *lines), (other_header, *other_lines) = rows(one), rows(other)
    assert header == other_header
    np.testing.assert_allclose(lines, other_lines, rtol=1e-6)


def close(history):
    """TensorFlow's optimizer of graphs may add up in another order each time one is built."""
    return {name: pytest.approx(numbers) for name, numbers in history.history.items()}


def test_both_hold_every_epoch_once(strategy, tmp_path, capsys):
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    undisturbed = train(strategy, tmp_path / "whole")
    with pytest.raises(InterruptedError):
        train(strategy, tmp_path / "cut", Crash(2))
    went_on = train(strategy, tmp_path / "cut")
    assert went_on.history == close(undisturbed)
    assert went_on.epoch == list(range(EPOCHS))
    same_rows(tmp_path / "cut", tmp_path / "whole")
    assert len(rows(tmp_path / "cut")) == 1 + EPOCHS
    # Once more: nothing is left to do, which is said, and nothing is lost.
    capsys.readouterr()
    assert train(strategy, tmp_path / "cut").history == close(undisturbed)
    assert f"{EPOCHS} of {EPOCHS} epochs are done in" in capsys.readouterr().err
    same_rows(tmp_path / "cut", tmp_path / "whole")
