"""How many steps a call makes follows the time of a step, unless somebody reads each batch."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import tfdist
from tests.training.loops.made import X, Y, linear
from tfdist.training import calls as calls_module
from tfdist.training import options
from tfdist.training.calls import Calls, read_batches


class EachBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        """Reads it."""


class OldName(keras.callbacks.Callback):
    def on_batch_begin(self, batch, logs=None):
        """Reads it."""


class EachEpoch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        """Reads no batch."""


def progress(verbose):
    bar = keras.callbacks.ProgbarLogger()
    bar.set_params({"verbose": verbose, "epochs": 1, "steps": 1})
    return bar


@pytest.mark.parametrize(
    ("callback", "reads"),
    [
        (EachBatch(), True),
        (OldName(), True),
        (keras.callbacks.LambdaCallback(on_train_batch_end=print), True),
        (keras.callbacks.TerminateOnNaN(), True),
        (progress(1), True),
        (progress(2), False),
        (EachEpoch(), False),
        (keras.callbacks.History(), False),
        (keras.callbacks.EarlyStopping(), False),
        (keras.callbacks.LambdaCallback(on_epoch_end=print), False),
    ],
)
def test_who_reads_batches(callback, reads):
    assert read_batches([EachEpoch(), callback]) is reads


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""

    class Clock:
        now = 0.0

    monkeypatch.setattr(calls_module.time, "perf_counter", lambda: Clock.now)
    return Clock


def make(calls, clock, *seconds):
    """Makes calls of so many seconds; returns how many steps the last one was allowed."""
    for each in seconds:
        with calls.timed(calls.most):
            clock.now += each
    return calls.most


def alone(value):
    return [value]


def test_a_call_grows_to_a_fifth_of_a_second_once_it_is_warm(clock):
    calls = Calls(1, [], alone, may_grow=True)
    assert make(calls, clock, 30.0, 1.0, 0.001, 0.001) == 1
    assert make(calls, clock, 0.0577) == 10


def test_it_grows_again_where_long_calls_cost_less_and_then_stays(clock):
    calls = Calls(1, [], alone, may_grow=True)
    assert make(calls, clock, 1.0, 1.0, *[0.0199] * 3) == 10
    assert make(calls, clock, 1.0, 1.0, *[0.0999] * 3) == 20
    assert make(calls, clock, 1.0, 1.0, *[2.0] * 3) == 20  # It does not shrink.
    assert make(calls, clock, 1.0, 1.0, *[1e-6] * 3) == 20


def test_a_round_grows_tenfold_at_most(clock):
    calls = Calls(1, [], alone, may_grow=True)
    assert make(calls, clock, 1.0, 1.0, *[1e-6] * 3) == 10
    assert make(calls, clock, 1.0, 1.0, *[1e-6] * 3) == 100
    assert make(calls, clock, 1.0, 1.0, *[1e-6] * 3) == 100


def test_calls_are_timed_when_a_queue_is_full(clock):
    calls = Calls(1, [], alone, may_grow=True, under_way=1)
    # Four calls that fill the queue, and six of which two come at once.
    assert make(calls, clock, 1.0, 0.0, 0.0, 0.0, 0.24, 0.0, 0.0, 0.08, 0.08, 0.08) == 2


@pytest.mark.parametrize(("seconds", "most"), [(0.3, 1), (0.15, 1), (1e-6, 10)])
def test_long_steps_are_called_one_by_one_and_short_ones_have_a_limit(clock, seconds, most):
    assert make(Calls(1, [], alone, may_grow=True), clock, 1.0, 1.0, *[seconds] * 3) == most


def test_a_number_that_is_given_stays(clock):
    calls = Calls(4, [], alone, may_grow=False)
    assert make(calls, clock, 1.0, 1.0, *[1e-6] * 3) == 4
    assert not calls.are_read


def test_all_workers_make_as_many_as_the_slowest(clock):
    told = []

    def exchange(value):
        told.append(value)
        return [value, 0 if len(told) == 1 else 7]

    assert make(Calls(1, [], exchange, may_grow=True), clock, 1.0, 1.0, *[0.0199] * 3) == 7
    assert told == [0, 10]


def test_a_reader_on_another_worker_holds_all_of_them(clock):
    calls = Calls(1, [], lambda value: [value, 1], may_grow=True)
    assert not calls.are_read
    assert make(calls, clock, 1.0, 1.0, *[1e-6] * 3) == 1


class Noting(Calls):
    """Takes down how many steps each call makes."""

    made: list[int] = []

    def timed(self, steps):
        self.made.append(steps)
        return super().timed(steps)


@pytest.mark.parametrize("replicas", [1, 2])
def test_weights_and_history_are_those_of_single_steps(devices, monkeypatch, replicas):
    monkeypatch.setattr(calls_module, "_SECONDS", 1e6)  # Whatever the machine's load.
    monkeypatch.setattr(options, "Calls", Noting)
    x, y = np.tile(X, (8, 1)), np.tile(Y, (8, 1))
    found = []
    for callbacks in ([EachBatch()], []):
        monkeypatch.setattr(Noting, "made", [])
        model = linear(tfdist.mirrored_strategy(devices[:replicas]))
        history = tfdist.Trainer(model).fit(
            x, y, batch_size=4, epochs=3, verbose=0, callbacks=callbacks, shuffle=False
        )
        assert (max(Noting.made) > 1) is (not callbacks)
        found.append((model.get_weights()[0].tolist(), history.history))
    assert found[0] == found[1]
