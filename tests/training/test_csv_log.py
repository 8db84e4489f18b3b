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
        return list(csv.reader(file))


def test_both_hold_every_epoch_once(strategy, tmp_path, capsys):
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    undisturbed = train(strategy, tmp_path / "whole")
    with pytest.raises(InterruptedError):
        train(strategy, tmp_path / "cut", Crash(2))
    went_on = train(strategy, tmp_path / "cut")
    assert went_on.history == undisturbed.history
    assert went_on.epoch == list(range(EPOCHS))
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")
    assert [row[0] for row in rows(tmp_path / "cut")] == ["epoch", "0", "1", "2", "3"]
    # Once more: nothing is left to do, which is said, and nothing is lost.
    capsys.readouterr()
    assert train(strategy, tmp_path / "cut").history == undisturbed.history
    assert f"{EPOCHS} of {EPOCHS} epochs are done in" in capsys.readouterr().err
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")
