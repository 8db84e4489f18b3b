"""How long steps wait for data is measured, and reported where it is long."""

from __future__ import annotations

import logging
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.training.input import intake
from tfdist.training.input.intake import Intake, of_waiting

SLEEP = 0.05


def slow_data(batches=4, seconds=SLEEP):
    def wait(x):
        time.sleep(seconds)
        return x

    x = np.ones((4 * batches, 2), np.float32)

    def slowly(x):
        return tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), [4, 2]), x[:, :1]

    return tf.data.Dataset.from_tensor_slices(x).batch(4, drop_remainder=True).map(slowly)


def test_the_wait_for_elements_adds_up_and_is_returned_once(tmp_path):
    taking = Intake(str(tmp_path / "fed"))
    taken = tf.function(lambda iterator: taking.take(iterator)[0])
    iterator = iter(slow_data())
    for _ in range(4):
        assert taken(iterator).shape == (4, 2)
    assert taking.seconds() >= 3 * SLEEP
    assert taking.seconds() == 0.0
    assert (tmp_path / "fed").exists()


def test_ready_elements_are_not_waited_for():
    taking = Intake()
    taken = tf.function(lambda iterator: taking.take(iterator))
    iterator = iter(tf.data.Dataset.range(100).prefetch(100))
    time.sleep(0.2)
    for _ in range(100):
        taken(iterator)
    assert taking.seconds() < 100 * SLEEP


@pytest.mark.parametrize(
    ("waited", "total", "reads_all", "text"),
    [
        (1.0, 1.0, True, ""),
        (19.0, 100.0, True, ""),
        (30.0, 100.0, True, "data: steps waited 30.0 of 100.0 s for it (30 %): every worker reads"),
        (6.0, 10.0, False, "(60 %): the data set is slower than the steps"),
    ],
)
def test_a_warning_is_for_much_waiting_and_gives_the_reason(waited, total, reads_all, text):
    warning = of_waiting(waited, total, reads_all=reads_all)
    assert text in warning
    assert bool(warning) == bool(text)


def test_data_of_tfdist_have_their_own_advice():
    source = tfdist.data.load("digits")
    advice = source.train(32).if_slow
    warning = of_waiting(6.0, 10.0, reads_all=False, advice=advice)
    assert "'tfdist bench input' shows the stage" in warning and "`map`" not in warning


@pytest.mark.parametrize("name", [pytest.param("mirrored", marks=pytest.mark.long), "one_device"])
def test_training_warns_once_that_it_waits(name, devices, monkeypatch, caplog):
    monkeypatch.setattr(intake, "_SECONDS", 2 * SLEEP)
    strategy = (
        tfdist.mirrored_strategy(devices) if name == "mirrored" else tfdist.one_device_strategy()
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    caplog.set_level(logging.WARNING)
    logging.getLogger("tfdist").addHandler(caplog.handler)
    try:
        data = slow_data(batches=10, seconds=10 * SLEEP)
        tfdist.Trainer(model).fit(data, epochs=2, verbose=0)
    finally:
        logging.getLogger("tfdist").removeHandler(caplog.handler)
    warnings = [record.getMessage() for record in caplog.records if "waited" in record.getMessage()]
    assert len(warnings) == 1
    assert "slower than the steps" in warnings[0]
