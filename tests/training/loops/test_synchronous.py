"""Steps under every synchronous strategy are those of plain gradient descent, to the bit."""

from __future__ import annotations

import os

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
from tfdist.training.loops.synchronous import SynchronousLoop
from tfdist.training.step.replica import PREDICT


@pytest.fixture(params=["central_storage@1", "mirrored@3", "central_storage"])
def strategy(request, devices):
    return strategy_of(request.param, devices)


def make(strategy, data=X, **options):
    model = linear(strategy)
    loops = loops_of(model, **options)
    feed = feed_of(loops, data)
    loop = loops.loop(feed)
    assert isinstance(loop, SynchronousLoop)
    loop.reset_metrics()
    return model, loop, feed


def whole_epoch(loop, feed, *counts):
    """The logs of an epoch, in calls of so many steps."""
    epoch = feed.epoch(0)
    for count in counts:
        logs = loop.train(epoch, count)
    loop.finish_epoch()
    return numbers(logs)


@pytest.mark.parametrize("counts", [(1, 2), (3,)], ids=str)
def test_weights_and_metrics_are_exact_whatever_number_of_steps_a_call_makes(strategy, counts):
    model, loop, feed = make(strategy)
    wanted = plain_weights()
    assert whole_epoch(loop, feed, *counts) == plain_logs([0.0, *wanted[:2]])
    assert weight(model) == wanted[-1]


def test_data_of_unknown_length_is_trained_on_likewise(devices):
    strategy = strategy_of("mirrored", devices)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: True).batch(4)
    model, loop, feed = make(strategy, data)
    epoch = feed.epoch(0)
    assert epoch.steps is None
    while epoch.peek():
        logs = loop.train(epoch, 1)
    assert numbers(logs) == plain_logs([0.0, *plain_weights()[:2]])
    assert weight(model) == plain_weights()[-1]


def test_evaluation_measures_all_rows_and_changes_nothing(strategy):
    model, loop, feed = make(strategy)
    model.set_weights([np.array([[0.5]])])
    epoch = feed.epoch(0)
    loop.test(epoch, 2)
    assert numbers(loop.test(epoch, 1)) == numbers(loop.logs()) == plain_logs([0.5] * 3)
    assert weight(model) == 0.5
    loop.reset_metrics()
    assert numbers(loop.logs()) == {"loss": 0.0, "mae": 0.0}


def test_predictions_are_in_the_order_of_the_rows(strategy):
    model, loop, feed = make(strategy)
    model.set_weights([np.array([[-3.0]])])
    epoch = feed.epoch(0)
    outputs = [loop.fetch(loop.predict(epoch)) for _ in range(epoch.steps)]
    assert [len(output) for output in outputs] == [4, 4, 1]
    assert np.concatenate(outputs).tolist() == (-3.0 * X).tolist()


def test_a_model_that_is_not_compiled_predicts(strategy):
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((1,)), layer])
    loops = loops_of(model)
    feed = feed_of(loops)
    loop, epoch = loops.loop(feed, PREDICT), feed.epoch(0)
    outputs = [loop.fetch(loop.predict(epoch)) for _ in range(epoch.steps)]
    assert np.concatenate(outputs).tolist() == X.tolist()


def test_an_epoch_goes_on_from_its_progress(devices):
    strategy = strategy_of("mirrored", devices)
    first, loop, feed = make(strategy)
    loop.train(feed.epoch(0), 2)
    loop.settle()
    progress = loop.progress()
    assert all(isinstance(total, np.ndarray) for total in progress.totals)
    second, loop, feed = make(strategy)
    second.set_weights(first.get_weights())
    loop.train(feed.epoch(0), 1)  # Is forgotten.
    second.set_weights(first.get_weights())
    loop.resume([tf.constant(total) for total in progress.totals], progress.logs)
    wanted = plain_logs([0.0, *plain_weights()[:2]])
    assert numbers(loop.train(feed.epoch(0, first=2), 1)) == wanted
    loop.resume(None, {})
    assert numbers(loop.logs()) == {"loss": 0.0, "mae": 0.0}


def test_gradients_that_are_under_way_at_the_end_of_an_epoch_are_applied_then(strategy):
    model, loop, feed = make(strategy, accumulate_steps=2)
    loop.train(feed.epoch(0), 3)
    first = plain_weights(batch=8)[0]
    assert weight(model) == first
    assert not loop.update.is_complete()
    loop.finish_epoch()
    assert weight(model) == plain_weights(batch=8)[1]
    assert loop.update.is_complete()


class Own(keras.Sequential):
    """Returns what the replica's slice comes to, as well as the metrics."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        self.optimizer.apply(
            tape.gradient(loss, self.trainable_variables), self.trainable_variables
        )
        return {"mean_x": tf.reduce_mean(x)}


@pytest.mark.parametrize("name", ["central_storage@1", "mirrored"])
def test_what_an_own_step_returns_is_that_of_the_last_global_batch(devices, name):
    strategy = strategy_of(name, devices)
    model = linear(strategy, Own)
    loops = loops_of(model)
    feed = feed_of(loops)
    loop = loops.loop(feed)
    loop.reset_metrics()
    epoch = feed.epoch(0)
    assert float(loop.train(epoch, 2)["mean_x"]) == X[4:8].mean()
    assert loop.progress().logs == {"mean_x": X[4:8].mean()}
    assert float(loop.train(epoch, 1)["mean_x"]) == X[8]
    assert weight(model) == plain_weights()[-1]
    loop.reset_metrics()
    assert float(loop.logs()["mean_x"]) == 0.0
    loop.resume(None, {"mean_x": 3.0, "other": 4.0})
    assert {k: v for k, v in numbers(loop.logs()).items() if v} == {"mean_x": 3.0, "other": 4.0}
    # Of a loop of another kind: this one's steps do not return it.
    assert set(loop.train(feed.epoch(1), 1)) == {"mean_x"}


def test_it_leaves_word_when_a_step_has_got_its_input(devices, tmp_path):
    path = tmp_path / "fed"
    _, loop, feed = make(strategy_of("mirrored", devices), fed_path=str(path))
    epoch = feed.epoch(0)
    for call in (loop.train, loop.test):
        assert not path.exists()
        call(epoch, 1)
        assert path.read_text() == ""
        os.unlink(path)
