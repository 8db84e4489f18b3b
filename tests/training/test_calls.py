"""Logs of a batch are computed for whoever reads batches; calls grow where nobody needs each."""

from __future__ import annotations

import keras
import pytest

from tfdist.training.calls import Calls, Growth, ask_for_batches, read_batches


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
        (keras.callbacks.ModelCheckpoint("a.keras"), False),
        (keras.callbacks.ModelCheckpoint("a.keras", save_freq=5), True),
    ],
)
def test_who_reads_batches(callback, reads):
    assert read_batches([EachEpoch(), callback]) is reads


@pytest.mark.parametrize(
    ("callback", "asks"),
    [(EachBatch(), True), (progress(1), False), (progress(2), False), (EachEpoch(), False)],
)
def test_keras_bar_does_without_each_batch(callback, asks):
    assert ask_for_batches([EachEpoch(), callback]) is asks


def sizes(times, others=(0,)):
    """The most steps of each call, where a step takes this worker `times`, in seconds."""
    exchanged = []

    def exchange(nanoseconds):
        exchanged.append(nanoseconds)
        return [nanoseconds, *others]

    calls = Calls(1, are_read=False, growth=Growth(exchange))
    made = []
    for seconds in times:
        made.append(calls.most)
        calls.made(calls.most, seconds * calls.most)
    return made, exchanged


def test_calls_of_short_steps_grow_to_a_short_time():
    made, exchanged = sizes([9.0, 9.0] + [0.001] * 20)
    assert made[:4] == [1, 1, 1, 1]  # Tracing is not what a step takes.
    assert set(made[4:]) == {50}
    assert exchanged == [1_000_000] * 2  # After calls 4 and 16.


def test_an_epoch_begins_with_one_step_where_calls_grow():
    grows, fixed = Calls(50, False, Growth(lambda number: [number])), Calls(50, False)
    assert [grows.most_at(step) for step in (0, 1, 51)] == [1, 50, 50]
    assert [fixed.most_at(step) for step in (0, 1)] == [50, 50]


def test_very_short_steps_are_not_without_limit():
    assert sizes([1e-6] * 6)[0][-1] == 64


def test_long_steps_stay_alone():
    assert set(sizes([0.4] * 70)[0]) == {1}


def test_calls_shrink_where_steps_become_longer():
    made, _ = sizes([0.001] * 4 + [0.01] * 20)
    assert (made[5], made[-1]) == (50, 5)


def test_all_workers_take_the_slowest_ones_number():
    assert sizes([0.001] * 6, others=(10_000_000, 2_000_000))[0][-1] == 5


@pytest.mark.parametrize("strategy", ["mirrored", "one_device"])
def test_calls_that_grow_give_the_same_bits(strategy, devices, monkeypatch):
    """On one device they do not grow: several steps in a call would be compiled once more."""
    import numpy as np

    import tfdist
    from tfdist.training.loops.one_device import OneDeviceLoop
    from tfdist.training.loops.synchronous import SynchronousLoop

    loop = SynchronousLoop if strategy == "mirrored" else OneDeviceLoop
    made = []
    train = loop.train

    def count(self, epoch, steps, **options):
        made.append(steps)
        return train(self, epoch, steps, **options)

    monkeypatch.setattr(loop, "train", count)
    x = np.random.default_rng(0).normal(size=(240, 3)).astype("float32")
    ends = []
    for options in ({}, {"steps_per_call": 1}):
        made.clear()
        keras.utils.set_random_seed(1)
        with tfdist.build_strategy(
            strategy,
            tfdist.Cluster.local(),
            devices=devices[:2] if strategy == "mirrored" else None,
        ).scope():
            model = keras.Sequential(
                [keras.Input((3,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
            )
            model.compile("adam", "mse", metrics=["mae"])
        trainer = tfdist.Trainer(model, **options)
        fit = trainer.fit(x, x[:, :1], batch_size=4, epochs=2, shuffle=False, verbose=0)
        ends.append((fit.history, [w.tobytes() for w in model.get_weights()]))
        assert sum(made) == 120
        assert (max(made) > 1) is (strategy == "mirrored" and not options)
    assert ends[0] == ends[1]
