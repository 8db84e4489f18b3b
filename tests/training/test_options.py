"""An argument of Trainer that is out of range is named in one line; calls grow where they may."""

from __future__ import annotations

import inspect
import math
from pathlib import Path

import keras
import numpy as np
import pytest

import tfdist
from tfdist.errors import ConfigError
from tfdist.training.options import (
    AutoStepsPerCall,
    StepLimit,
    TrainerOptions,
    need_each_batch,
    read_batches,
)

PARAMETERS = inspect.signature(tfdist.Trainer).parameters.values()
DEFAULTS = {each.name: each.default for each in PARAMETERS if each.name != "model"}


def options(**given):
    return TrainerOptions(**(DEFAULTS | given))


WHOLE = [0, -1, 1.5, "many", True, math.inf]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, value)
            for name in ("keep_checkpoints", "accumulate_steps", "steps_per_call", "bytes_per_pack")
            for value in (*WHOLE, None)
        ),
        *(("checkpoint_steps", value) for value in WHOLE),
        *(("checkpoint_seconds", value) for value in (0, -0.5, math.nan, math.inf, "1", True)),
        *((name, v) for name in ("wire_dtype", "transport") for v in ("int8", None, 16, "")),
    ],
    ids=repr,
)
def test_what_is_out_of_range_is_named_in_one_line(name, value):
    with pytest.raises(ConfigError) as error:
        options(checkpoint_dir="somewhere", **{name: value})
    message = str(error.value)
    assert message.startswith(f"Trainer({name}): {value!r} is given; allowed: ")
    assert "\n" not in message


@pytest.mark.parametrize("name", ["checkpoint_steps", "checkpoint_seconds"])
def test_how_often_to_save_needs_a_place_to_save_to(name):
    with pytest.raises(ConfigError, match=r"^Trainer\(checkpoint_dir\): none is given.*give both$"):
        options(**{name: 1})
    assert getattr(options(checkpoint_dir=Path("here"), **{name: 1}), name) == 1


def test_whole_numbers_of_numpy_and_small_fractions_of_seconds_are_allowed():
    made = options(
        checkpoint_dir="here",
        checkpoint_steps=np.int64(5),
        checkpoint_seconds=1e-3,
        bytes_per_pack=np.int32(4096),
        accumulate_steps=np.uint8(2),
        steps_per_call=np.int16(7),
    )
    assert made.for_loops("").bytes_per_pack == 4096
    assert made.max_steps_per_call(compiled=1) == 7


def test_auto_is_what_the_strategy_and_the_model_have():
    made = options()
    loops = made.for_loops("/run/fed")
    assert (loops.accumulate_steps, loops.wire_dtype, loops.transport) == (1, "auto", "auto")
    assert (loops.bytes_per_pack, loops.fed_path) == (0, "/run/fed")
    assert made.max_steps_per_call(compiled=9) == made.fixed_steps_per_call(compiled=9) == 9


def test_what_is_given_is_handed_on():
    made = options(accumulate_steps=4, steps_per_call=3, bytes_per_pack=64)
    loops = made.for_loops("")
    assert (loops.accumulate_steps, loops.bytes_per_pack, loops.fed_path) == (4, 64, "")
    assert (made.max_steps_per_call(compiled=9), made.fixed_steps_per_call(compiled=9)) == (3, 1)
    made = options(wire_dtype="bfloat16", transport="tensorflow").for_loops("")
    assert (made.wire_dtype, made.transport) == ("bfloat16", "tensorflow")


def test_options_are_by_name_and_do_not_change():
    with pytest.raises(TypeError):
        TrainerOptions(*DEFAULTS.values())
    with pytest.raises(AttributeError):
        options().accumulate_steps = 2


def test_checkpoints_are_made_where_a_place_is_given(devices, tmp_path):
    from tfdist.collectives.process_group import ProcessGroup

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    group = ProcessGroup(tfdist.one_device_strategy(devices[0]))
    assert options().checkpoints(model, group) is None
    by_epoch = options(checkpoint_dir=tmp_path).checkpoints(model, group)
    assert by_epoch.by_epoch
    assert by_epoch.until_due(3) is None
    by_steps = options(checkpoint_dir=tmp_path, checkpoint_steps=5).checkpoints(model, group)
    assert not by_steps.by_epoch
    assert by_steps.until_due(3) == 2
    assert [by_steps.is_due(total) for total in (4, 5)] == [False, True]
    by_time = options(checkpoint_dir=tmp_path, checkpoint_seconds=1e-9).checkpoints(model, group)
    assert by_time.is_due(1)


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
    assert need_each_batch([EachEpoch(), callback]) is asks


def sizes(times, others=(0,)):
    """The most steps of each call, where a step takes this worker `times`, in seconds."""
    exchanged = []

    def exchange(nanoseconds):
        exchanged.append(nanoseconds)
        return [nanoseconds, *others]

    limit = StepLimit(1, reads_logs=False, auto=AutoStepsPerCall(exchange))
    made = []
    for seconds in times:
        made.append(limit.most)
        limit.record(limit.most, seconds * limit.most)
    return made, exchanged


def test_calls_of_short_steps_grow_to_a_short_time():
    made, exchanged = sizes([9.0, 9.0] + [0.001] * 20)
    assert made[:4] == [1, 1, 1, 1]  # Tracing is not what a step takes.
    assert set(made[4:]) == {50}
    assert exchanged == [1_000_000] * 2  # After calls 4 and 16.


def test_an_epoch_begins_with_one_step_where_calls_grow():
    grows, fixed = (
        StepLimit(50, False, AutoStepsPerCall(lambda number: [number])),
        StepLimit(50, False),
    )
    assert [grows.at(step) for step in (0, 1, 51)] == [1, 50, 50]
    assert [fixed.at(step) for step in (0, 1)] == [50, 50]


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
