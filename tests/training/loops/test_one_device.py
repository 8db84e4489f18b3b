"""On one device Keras' own steps run, one or several a call, with the same numbers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.training.loops.made import (
    X,
    Y,
    feed_of,
    linear,
    loops_of,
    numbers,
    plain_logs,
    plain_weights,
    strategy_of,
    weight,
)
from tfdist.training.loops.one_device import OneDeviceLoop

UNKNOWN = [None, "unknown length"]


@pytest.fixture(params=["one_device", "mirrored@1"])
def strategy(request, devices):
    return strategy_of(request.param, devices)


def make(strategy, kind=keras.Sequential, data=None, fed_path="", **options):
    model = linear(strategy, kind, **options)
    loops = loops_of(model, fed_path=fed_path)
    if isinstance(data, str):
        data = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: True).batch(4)
    feed = feed_of(loops, X if data is None else data)
    loop = loops.loop(feed)
    assert isinstance(loop, OneDeviceLoop)
    loop.reset_metrics()
    return model, loop, feed


@pytest.mark.parametrize("data", UNKNOWN)
@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}, {"jit_compile": True}], ids=str)
def test_weights_and_metrics_are_exact_whatever_number_of_steps_a_call_makes(
    strategy, options, data
):
    model, loop, feed = make(strategy, data=data, **options)
    for number, counts in enumerate([(1, 2), (3,)]):
        epoch = feed.epoch(number)
        loop.reset_metrics()
        for count in counts:
            assert epoch.steps or epoch.peek()
            logs = loop.train(epoch, count)
        wanted = [0.0, *plain_weights(epochs=2)][3 * number : 3 * number + 4]
        assert numbers(logs) == loop.logs() == plain_logs(wanted[:3])
        assert weight(model) == wanted[3]
        feed.end_epoch()
    assert int(model.optimizer.iterations.numpy()) == 6


@pytest.mark.parametrize("data", UNKNOWN)
def test_evaluation_and_prediction_change_nothing(strategy, data):
    model, loop, feed = make(strategy, data=data, steps_per_execution=2)
    model.set_weights([np.array([[0.5]])])
    epoch = feed.epoch(0)
    assert epoch.steps or epoch.peek()
    loop.test(epoch, 3)
    assert loop.logs() == plain_logs([0.5] * 3)
    epoch = feed.epoch(1)
    assert epoch.steps or epoch.peek()
    outputs = [loop.fetch(loop.predict(epoch, count)) for count in (2, 1)]
    assert loop.join(outputs).tolist() == (0.5 * X).tolist()
    assert (weight(model), int(model.optimizer.iterations.numpy())) == (0.5, 0)


def test_an_epoch_goes_on_from_its_progress(strategy):
    first, loop, feed = make(strategy)
    loop.train(feed.epoch(0), 2)
    loop.settle()
    progress = loop.progress()
    second, loop, feed = make(strategy)
    loop.train(feed.epoch(0), 1)  # Is forgotten.
    second.set_weights(first.get_weights())
    loop.resume([tf.constant(total) for total in progress.totals], progress.logs)
    assert loop.logs() == plain_logs([0.0, plain_weights()[0]])
    logs = loop.train(feed.epoch(0, first=2), 1)
    assert numbers(logs) == plain_logs([0.0, *plain_weights()[:2]])
    loop.resume(None, {})
    assert [float(np.asarray(v)) for v in second.metrics_variables] == [0.0] * 4


def test_a_batch_that_was_read_to_count_its_rows_is_trained_on_once(strategy):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    model, loop, feed = make(strategy, data=data)
    assert feed.rows == 4
    epoch = feed.epoch(0)
    assert epoch.steps == 3
    loop.train(epoch, 3)
    assert weight(model) == plain_weights()[-1]


def test_every_step_is_an_update(strategy):
    _, loop, feed = make(strategy)
    loop.train(feed.epoch(0), 1)
    assert loop.update.is_complete()
    assert loop.update.calls_to_end(5) == 5
    assert loop.update.loss_scale() is None


class Own(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data) | {"mean_x": tf.reduce_mean(data[0]), "none": None}


@pytest.mark.parametrize("counts", [(1, 1), (2,)], ids=str)
def test_what_an_own_step_returns_is_that_of_the_last_step(strategy, counts):
    _, loop, feed = make(strategy, Own)
    epoch = feed.epoch(0)
    for count in counts:
        logs = loop.train(epoch, count)
    assert logs["none"] is None
    assert float(logs["mean_x"]) == X[4:8].mean()
    assert loop.progress().logs["mean_x"] == X[4:8].mean()


def test_variables_are_made_without_a_step(devices):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    loops = loops_of(model)
    feed = feed_of(loops)
    loop = loops.loop(feed)
    assert not model.built
    loop.build(feed)
    assert model.built and model.optimizer.built
    assert len(model.metrics_variables) == 4
    assert int(model.optimizer.iterations.numpy()) == 0
    assert all((np.asarray(v) == 0).all() for v in model.metrics_variables)


@pytest.mark.parametrize("data", UNKNOWN)
def test_it_leaves_word_when_a_step_has_got_its_input(devices, tmp_path, data):
    path = tmp_path / "fed"
    _, loop, feed = make(strategy_of("one_device", devices), data=data, fed_path=str(path))
    epoch = feed.epoch(0)
    for call in (loop.train, loop.test):
        assert not path.exists()
        assert epoch.steps or epoch.peek()
        call(epoch, 1)
        assert path.read_text() == ""
        path.unlink()
