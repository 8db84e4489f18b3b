"""A callback on one worker stops all of them, after the batch where plain Keras would stop."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.training.loops.made import X, Y, linear
from tfdist.collectives.layout import ReplicaLayout
from tfdist.collectives.worker_flags import WorkerFlags
from tfdist.training.stop_training import StopTraining, stopped_together

WORKERS = 2


class Meeting:
    """What workers that are threads tell each other: all of them, at the same points."""

    def __init__(self):
        self._values = [None] * WORKERS
        self._barrier = threading.Barrier(WORKERS, timeout=60)
        self.times = 0

    def exchange(self, worker, value):
        self._values[worker] = value
        if self._barrier.wait() == 0:
            self.times += 1
        found = list(self._values)
        self._barrier.wait()
        return found


class Group:
    """A worker's view of them."""

    def __init__(self, meeting, worker):
        self.layout = ReplicaLayout(worker, WORKERS, 1, WORKERS)
        self._meeting = meeting

    def exchange(self, value):
        return self._meeting.exchange(self.layout.worker, value)


class Model:
    """Holds what callbacks set."""

    stop_training = True  # Of an earlier training.


class AfterBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        """May stop training."""


class AfterOldBatch(keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        """May stop training."""


class AfterEpoch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        """May stop training."""


def steps_made(callbacks, wishes, steps=6):
    """How many steps each worker makes, and how often they met: wishes are (worker, step)."""
    meeting, sums = Meeting(), Meeting()

    def work(worker):
        model, flags = Model(), WorkerFlags()
        stop = StopTraining(model, Group(meeting, worker), flags, callbacks[worker])
        assert not model.stop_training
        for step in range(1, steps + 1):
            stop.before_call()
            # The step adds up all workers' flags.
            flags.record(sum(np.array(own) for own in sums.exchange(worker, flags.own().numpy())))
            if (worker, step) in wishes:
                model.stop_training = True
            if stop.after_call():
                assert model.stop_training
                return step
            assert not model.stop_training or (worker, step) in wishes
        return None

    with ThreadPoolExecutor(WORKERS) as pool:
        made = list(pool.map(work, range(WORKERS)))
    return made, meeting.times


@pytest.mark.parametrize(
    "callback", [AfterBatch(), AfterOldBatch(), keras.callbacks.TerminateOnNaN()]
)
@pytest.mark.parametrize("worker", [0, 1])
def test_where_a_callback_has_a_say_all_stop_after_its_batch(worker, callback):
    """Also where only one worker has it."""
    callbacks = [[], []]
    callbacks[worker].append(callback)
    assert steps_made(callbacks, {(worker, 3)}) == ([3, 3], 4)
    assert steps_made(callbacks, {}) == ([None, None], 7)


def test_what_stops_between_two_callbacks_is_seen_with_the_next_step():
    """That costs no exchange but the one in the beginning."""
    quiet = [AfterEpoch(), keras.callbacks.EarlyStopping(), keras.callbacks.History()]
    assert steps_made([quiet, []], {(1, 3)}) == ([4, 4], 1)
    assert steps_made([quiet, []], {}) == ([None, None], 1)


def test_a_function_of_the_users_has_a_say_too():
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)
    assert steps_made([[], [callback]], {(0, 2)}) == ([2, 2], 3)
    assert steps_made([[], [keras.callbacks.LambdaCallback()]], {(0, 2)}) == ([3, 3], 1)


def test_at_the_end_of_an_epoch_all_learn_what_one_decided():
    meeting = Meeting()

    def work(worker):
        model = Model()
        stop = StopTraining(model, Group(meeting, worker), WorkerFlags(), [])
        answers = [stop.exchange()]
        model.stop_training = worker == 1
        return [*answers, stop.exchange(), model.stop_training]

    with ThreadPoolExecutor(WORKERS) as pool:
        assert list(pool.map(work, range(WORKERS))) == [[False, True, True]] * WORKERS


@pytest.mark.parametrize("stop_at", [0, 2, 4])
def test_fit_stops_where_that_of_keras_does(devices, stop_at):
    """Of three batches an epoch; in the midst of the second one, nothing of it is evaluated."""

    class Stop(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.seen = []

        def on_train_batch_end(self, batch, logs=None):
            self.seen.append(batch)
            if len(self.seen) == stop_at + 1:
                self.model.stop_training = True

        def on_epoch_end(self, epoch, logs=None):
            self.seen.append(f"epoch {epoch}")

    found = []
    for make in (lambda model: model, tfdist.Trainer):
        strategy = tfdist.mirrored_strategy(devices[:2]) if found else None
        model = linear(strategy or tfdist.one_device_strategy(devices[0]))
        stop = Stop()
        make(model).fit(X, Y, batch_size=4, epochs=3, shuffle=False, verbose=0, callbacks=[stop])
        assert model.stop_training
        found.append((stop.seen, model.get_weights()[0].tolist()))
    assert found[0] == found[1]


class EndsAtTheSecondBatch(keras.callbacks.Callback):
    batches = 0

    def on_test_batch_end(self, batch, logs=None):
        self.batches += 1
        self.model.stop_evaluating = self.batches == 2

    def on_predict_batch_end(self, batch, logs=None):
        self.batches += 1
        self.model.stop_predicting = self.batches == 2


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_a_callback_ends_what_has_no_end(devices, method, replicas):
    model = linear(tfdist.mirrored_strategy(devices[:replicas]))
    endless = tf.data.Dataset.from_tensors((X[:2], Y[:2])).repeat(100)
    callback = EndsAtTheSecondBatch()
    getattr(tfdist.Trainer(model), method)(endless, verbose=0, callbacks=[callback])
    assert callback.batches == 2


@pytest.mark.parametrize("worker", [0, 1])
def test_all_workers_end_an_evaluation_after_the_same_batch(worker):
    meeting = Meeting()

    def work(own):
        model = Model()
        callbacks = [EndsAtTheSecondBatch()] if own == worker else []
        for callback in callbacks:
            callback.set_model(model)
        exchange = Group(meeting, own).exchange
        stopped = stopped_together(model, "stop_evaluating", exchange, callbacks)
        for batch in range(5):
            for callback in callbacks:
                callback.on_test_batch_end(batch)
            if stopped():
                return batch
        return None

    with ThreadPoolExecutor(WORKERS) as pool:
        assert list(pool.map(work, range(WORKERS))) == [1] * WORKERS


def test_without_a_callback_that_has_a_say_nothing_is_exchanged_after_a_batch():
    exchanged = []

    def exchange(value):
        exchanged.append(value)
        return [value, 0]

    callbacks = [keras.callbacks.History()]
    stopped = stopped_together(Model(), "stop_evaluating", exchange, callbacks)
    assert not stopped()
    assert exchanged == [0]
