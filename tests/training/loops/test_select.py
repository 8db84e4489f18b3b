"""A loop is made once for each kind of data, of the parts that strategy and options ask for."""

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
    plain_weights,
    shard_feed,
    strategy_of,
    weight,
)
from tfdist.collectives.transport import SingleReplica
from tfdist.training.loops.one_device import OneDeviceLoop
from tfdist.training.loops.select import LoopOptions
from tfdist.training.loops.synchronous import SynchronousLoop
from tfdist.training.step.replica import PREDICT


@pytest.fixture
def mirrored(devices):
    return strategy_of("mirrored", devices)


def trained(loop, feed, steps):
    loop.reset_metrics()
    logs = loop.train(feed.epoch(0), steps)
    loop.finish_epoch()
    return numbers(logs)


def test_one_loop_serves_all_data_of_a_kind(mirrored):
    loops = loops_of(linear(mirrored))
    one = loops.loop(feed_of(loops))
    assert loops.loop(feed_of(loops, batch_size=3)) is one
    assert loops.loop(feed_of(loops, tf.data.Dataset.from_tensors((X, Y)))) is one
    own = loops.loop(shard_feed())
    assert own is not one
    assert loops.loop(shard_feed()) is own
    assert loops.loop(shard_feed(2)) is not own


def test_what_an_update_adds_up_depends_on_the_size_of_a_batch(mirrored):
    loops = loops_of(linear(mirrored), accumulate_steps=2)
    one = loops.loop(feed_of(loops))
    assert loops.loop(feed_of(loops, batch_size=3)) is not one
    assert loops.loop(feed_of(loops)) is one


@pytest.mark.parametrize("change", ["optimizer", "metrics", "frozen"])
def test_a_model_that_was_changed_gets_a_loop_that_knows_it(mirrored, change):
    model = linear(mirrored)
    loops = loops_of(model)
    before = loops.loop(feed_of(loops))
    model.set_weights([np.array([[first := 0.5]])])
    with mirrored.scope():
        if change == "optimizer":
            model.optimizer = keras.optimizers.SGD(1.0)
        if change == "metrics":
            model.compile(model.optimizer, "mse", metrics=["mse"])
        if change == "frozen":
            model.trainable = False
            model.compile(keras.optimizers.SGD(1.0), "mse", metrics=["mse"])
    loop = loops.loop(feed_of(loops))
    assert loop is not before
    if change == "frozen":
        loop.reset_metrics()
        logs = numbers(loop.test(feed_of(loops).epoch(0), 1))
    else:
        logs = trained(loop, feed_of(loops), 1)
    assert logs["loss"] == np.mean((first * X[:4] - Y[:4]) ** 2, dtype="float64")
    assert ("mse" in logs) == (change != "optimizer") == ("mae" not in logs)
    gradient = np.mean(2 * (first * X[:4] - Y[:4]) * X[:4], dtype="float64")
    rate = {"optimizer": 1.0, "metrics": 2.0**-4, "frozen": 0.0}[change]
    assert weight(model) == first - rate * gradient


def test_a_model_without_variables_is_built_from_the_data_under_its_strategy(mirrored):
    with mirrored.scope():
        model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(), "mse", metrics=["mae"])
    loops = loops_of(model)
    loops.loop(feed_of(loops), PREDICT)
    assert model.built
    loops.loop(feed_of(loops))
    assert model.optimizer.built
    assert [len(v.value.values) for v in model.trainable_variables] == [2] * 4


def test_shards_of_workers_count_by_their_rows(mirrored):
    model, feed = linear(mirrored), shard_feed()
    trained(loops_of(model).loop(feed), feed, 3)
    assert weight(model) == plain_weights()[-1]


@pytest.mark.parametrize(("replicas", "kind"), [(1, None), (2, "float16"), (2, "float32")])
def test_the_wire_options_reach_the_transport_of_several_replicas(devices, replicas, kind):
    """1 + 2**-11 times a power of two is rounded by float16 only, and by one replica never."""
    strategy = strategy_of(f"central_storage@{replicas}", devices)
    model = linear(strategy, optimizer=keras.optimizers.SGD(1.0))
    loops = loops_of(model, wire_dtype=kind or "float16", bytes_per_pack=1024)
    data = np.array([[1.0], [0.0]], "float32"), np.array([[1 + 2.0**-11], [0.0]], "float32")
    feed = feed_of(loops, *data, batch_size=2)
    trained(loops.loop(feed), feed, 1)
    assert weight(model) == (1.0 if kind == "float16" else 1 + 2.0**-11)
    transport = loops._transport()
    assert transport.replicas == replicas
    if kind is None:
        assert isinstance(transport, SingleReplica)
    else:
        assert transport._bytes_per_pack == 1024


def test_an_update_may_be_that_of_several_batches(mirrored):
    model = linear(mirrored)
    loops = loops_of(model, accumulate_steps=3)
    feed = feed_of(loops)
    trained(loops.loop(feed), feed, 3)
    assert int(model.optimizer.iterations.numpy()) == 1
    # Of nine rows, which count alike though they come as four, four and one.
    assert weight(model) == pytest.approx(plain_weights(batch=9)[0], rel=1e-6)


def test_metrics_that_keep_no_sums_see_all_rows_together(mirrored):
    model = linear(mirrored, metrics=[keras.metrics.PearsonCorrelation(axis=0)])
    loops = loops_of(model)
    feed = feed_of(loops, batch_size=9)
    loop = loops.loop(feed)
    model.set_weights([np.array([[1.0]])])
    loop.reset_metrics()
    logs = loop.test(feed.epoch(0), 1)
    wanted = np.corrcoef(X[:, 0], Y[:, 0])[0, 1]
    np.testing.assert_allclose(logs["pearson_correlation"], wanted, rtol=1e-5)


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_model_may_run_without_being_traced(devices, eagerly):
    calls = []

    class Counting(keras.Sequential):
        def call(self, inputs, training=None):
            calls.append(tf.executing_eagerly())
            return super().call(inputs, training=training)

    model = linear(strategy_of("central_storage@1", devices), Counting, run_eagerly=eagerly)
    loops = loops_of(model)
    feed = feed_of(loops)
    loop = loops.loop(feed)
    calls.clear()
    trained(loop, feed, 3)
    assert calls == ([True] * 3 if eagerly else [False])
    assert weight(model) == plain_weights()[-1]


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("one_device", {}, OneDeviceLoop),
        ("mirrored@1", {}, OneDeviceLoop),
        ("one_device", {"accumulate_steps": 2}, SynchronousLoop),
        ("mirrored", {}, SynchronousLoop),
        ("central_storage@1", {}, SynchronousLoop),
    ],
    ids=str,
)
def test_keras_own_steps_run_where_one_device_makes_plain_updates(devices, name, options, kind):
    loops = loops_of(linear(strategy_of(name, devices)), **options)
    assert loops.runs_keras_steps == (kind is OneDeviceLoop)
    assert type(loops.loop(feed_of(loops))) is kind


@pytest.mark.parametrize("change", [None, "compiled", "frozen", "eager"])
def test_keras_own_steps_are_traced_anew_for_a_model_that_was_changed(devices, change):
    model = linear(strategy_of("one_device", devices))
    loops = loops_of(model)
    before = loops.loop(feed_of(loops))
    if change == "compiled":
        model.compile("sgd", "mae")
    if change == "frozen":
        model.layers[0].trainable = False
    if change == "eager":
        model.run_eagerly = True
    # What is trainable counts when a step is traced.
    assert (loops.loop(feed_of(loops)) is before) == (change in (None, "frozen"))


@pytest.mark.parametrize("eager", [False, True])
def test_what_is_trainable_counts_until_a_graph_has_trained(mirrored, eager):
    model = linear(mirrored, run_eagerly=eager)
    loops = loops_of(model)
    before = loops.loop(feed_of(loops))
    model.trainable = False
    frozen = loops.loop(feed_of(loops))
    assert frozen is not before
    model.trainable = True
    loop = loops.loop(feed_of(loops))
    trained(loop, feed_of(loops), 1)
    model.trainable = False
    assert (loops.loop(feed_of(loops)) is loop) == (not eager)


def test_the_options_are_those_of_exact_sums_unless_they_are_given():
    options = LoopOptions()
    assert (options.accumulate_steps, options.wire_dtype) == (1, "auto")
    assert (options.transport, options.bytes_per_pack, options.fed_path) == ("auto", 0, "")


class Mixing(keras.Sequential):
    """Centres the rows of a batch: what a replica has of them differs from the whole."""

    def call(self, x, training=None):
        y = super().call(x)
        return y - tf.reduce_mean(y)


@pytest.mark.parametrize(
    ("strategy", "options", "parts"),
    [
        ("mirrored", {}, "the 2 replicas compute"),
        ("mirrored@1", {"accumulate_steps": 2}, "the 2 batches of an update compute"),
        ("mirrored@1", {}, ""),
    ],
)
def test_a_model_that_mixes_rows_is_warned_of_once(devices, capsys, strategy, options, parts):
    loops = loops_of(linear(strategy_of(strategy, devices), kind=Mixing), **options)
    loops._model.set_weights([np.array([[1.0]])])
    loops.loop(feed_of(loops))
    loops.loop(shard_feed())
    warned = capsys.readouterr().err
    assert warned.count("it mixes rows") == (1 if parts else 0)
    assert parts in warned
