"""Keras' CSVLogger and History after a restart: whole, each epoch once."""

from __future__ import annotations

import csv

import keras
import numpy as np
import pytest

import tfdist

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
