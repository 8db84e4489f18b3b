"""Calls make at most so many steps, and callbacks are given the batch numbers that Keras gives."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.training.loops.made import X, Y, feed_of, linear, loops_of, plain_weights, weight
from tfdist.collectives.worker_flags import WorkerFlags
from tfdist.errors import ConfigError
from tfdist.runtime.heartbeat import HeartbeatWriter
from tfdist.training.epoch_runner import evaluate_epoch, predict_epoch, train_epoch
from tfdist.training.options import StepLimit
from tfdist.training.session import HeartbeatOnly
from tfdist.training.stop_training import StopTraining


class Numbers(keras.callbacks.Callback):
    """The numbers of batches that each hook is called with, in order, and the logs' names."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.calls = []
        self.stop_at = stop_at

    def seen(self, hook, batch, logs=None):
        self.calls.append((hook, batch, sorted(logs or ())))
        if hook == "on_train_batch_end" and batch == self.stop_at:
            self.model.stop_training = True


for kind in ("train", "test", "predict"):
    for hook in (f"on_{kind}_batch_begin", f"on_{kind}_batch_end"):
        setattr(Numbers, hook, functools.partialmethod(Numbers.seen, hook))


def data_of(kind):
    rows = np.concatenate([X, X, X])[:26], np.concatenate([Y, Y, Y])[:26]
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    if kind == "unknown length":
        dataset = dataset.filter(lambda x, y: True)
    return dataset.batch(4)  # Seven batches, of which the last has two rows.


def called(run, strategy=None, per_call=1, kind="known length"):
    """What the callbacks see of fit, evaluate and predict."""
    numbers = Numbers()
    model = linear(strategy or tf.distribute.get_strategy(), steps_per_execution=per_call)
    made = run(model)
    data = data_of(kind)
    options = {"epochs": 2, "verbose": 0, "callbacks": [numbers], "shuffle": False}
    made.fit(data, validation_data=data, **options)
    made.predict(data.map(lambda x, y: x), verbose=0, callbacks=[numbers])
    return numbers.calls


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("kind", ["known length", "unknown length"])
@pytest.mark.parametrize("per_call", [1, 3])
def test_on_one_device_the_numbers_are_those_of_keras(per_call, kind):
    calls = called(lambda model: model, per_call=per_call, kind=kind)
    # Where it does not know the end, Keras begins a batch and then finds that there is none.
    after = [hook for hook, *_ in calls[1:]] + [""]
    pairs = zip(calls, after, strict=True)
    keras_own = [c for c, then in pairs if c[0][-3:] == "end" or c[0][:-5] + "end" == then]
    assert called(tfdist.Trainer, per_call=per_call, kind=kind) == keras_own


@pytest.mark.long
def test_on_several_replicas_they_are_too_with_one_step_a_call(devices):
    mirrored = tfdist.mirrored_strategy(devices[:2])
    assert called(tfdist.Trainer, mirrored) == called(lambda model: model)
    numbers = [(hook[-5:], n) for hook, n, _ in called(tfdist.Trainer, mirrored, 3)]
    ends = [n for hook, n in numbers if hook == "h_end"]
    assert ends == [2, 5, 6] * 4 + list(range(7))  # Which says what was done, not planned.


@pytest.fixture
def mirrored(devices):
    model = linear(tfdist.mirrored_strategy(devices[:2]))
    loops = loops_of(model)
    return model, loops, loops.loop(feed_of(loops))


class Counts(HeartbeatOnly):
    """Allows so many steps a call, and takes down what is made."""

    def __init__(self, most=99):
        super().__init__(HeartbeatWriter(""))
        self.most = most
        self.made, self.evaluated = [], []

    def before_training(self, count):
        return min(count, self.most)

    def after_training(self, count):
        self.made.append(count)

    def before_evaluating(self, step):
        self.evaluated.append(step)


def train(mirrored, numbers=None, listener=None, *, first=0, most=2, data=X):
    model, loops, loop = mirrored
    numbers, listener = numbers or Numbers(), listener or Counts()
    every = keras.callbacks.CallbackList([numbers], model=model)
    stop = StopTraining(model, loops._group, WorkerFlags(), [numbers])
    epoch = feed_of(loops, data).epoch(0, first=first)
    limit = StepLimit(most, reads_logs=True)
    train_epoch(epoch, loop, every, listener, stop, limit, first=first)
    return [(hook[9:], n) for hook, n, _ in numbers.calls], listener


def test_a_call_makes_as_many_steps_as_its_listener_allows(mirrored):
    calls, listener = train(mirrored, listener=Counts(1))
    assert calls == [(f"batch_{end}", n) for n in range(3) for end in ("begin", "end")]
    assert listener.made == [1, 1, 1]
    assert weight(mirrored[0]) == plain_weights()[-1]


def test_an_epoch_that_was_begun_continues_at_its_step(mirrored):
    mirrored[0].set_weights([np.array([[plain_weights()[0]]])])
    calls, listener = train(mirrored, first=1, most=9)
    assert calls == [("batch_begin", 1), ("batch_end", 2)]
    assert listener.made == [2]
    assert weight(mirrored[0]) == plain_weights()[-1]


def test_an_epoch_ends_after_the_batch_where_a_callback_stops_it(mirrored):
    calls, listener = train(mirrored, Numbers(stop_at=1), most=1)
    assert calls[-1] == ("batch_end", 1)
    assert listener.made == [1, 1]
    assert weight(mirrored[0]) == plain_weights()[1]


def test_an_epoch_that_was_done_when_it_was_saved_makes_no_step(mirrored):
    assert train(mirrored, first=3)[0] == []
    assert weight(mirrored[0]) == 0.0


def test_evaluation_is_followed_and_can_be_stopped(mirrored):
    model, loops, loop = mirrored
    numbers, listener = Numbers(), Counts()
    every = keras.callbacks.CallbackList([numbers], model=model)
    evaluate_epoch(feed_of(loops).epoch(0), loop, every, listener, most=2)
    assert listener.evaluated == [0, 2]
    assert [n for _, n, _ in numbers.calls] == [0, 1, 2, 2]
    asked = iter([False, True])
    evaluate_epoch(
        feed_of(loops).epoch(0), loop, every, listener, most=1, stopped=lambda: next(asked)
    )
    assert listener.evaluated == [0, 2, 0, 1]


def test_predictions_are_joined_in_the_order_of_the_batches(mirrored):
    model, loops, loop = mirrored
    model.set_weights([np.array([[3.0]])])
    numbers = Numbers()
    every = keras.callbacks.CallbackList([numbers], model=model)
    outputs = predict_epoch(feed_of(loops).epoch(0), loop, every)
    assert outputs.tolist() == (3 * X).tolist()
    assert [(n, names) for _, n, names in numbers.calls[-2:]] == [(2, []), (2, ["outputs"])]


def test_data_without_a_batch_is_refused(mirrored):
    model, loops, loop = mirrored
    every = keras.callbacks.CallbackList([], model=model)
    empty = data_of("unknown length").take(0)
    for run in (
        lambda: train(mirrored, data=empty),
        lambda: evaluate_epoch(feed_of(loops, empty).epoch(0), loop, every, Counts(), most=1),
        lambda: predict_epoch(feed_of(loops, empty).epoch(0), loop, every),
    ):
        with pytest.raises(ConfigError, match="^data: it has no batch"):
            run()
