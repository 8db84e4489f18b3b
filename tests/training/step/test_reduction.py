"""Replicas' outputs are summed, or averaged by their slices' weights, in one place."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.training.step.replicas import dense, on_each, plain, transport_of
from tfdist.collectives.replica_context import real_context
from tfdist.collectives.worker_flags import Flag, WorkerFlags
from tfdist.training.step.metrics import MetricTotals
from tfdist.training.step.recording import AddedUp
from tfdist.training.step.reduction import Reduced, Reduction
from tfdist.training.step.replica import ReplicaOutput
from tfdist.training.step.slicing import Slice

COUNTS = (3, 4)


def compiled():
    model = dense()
    model.compile("sgd", "mse")
    return model


def reduce(strategy, nominal: int, flags: WorkerFlags, **options) -> list[Reduced]:
    """What each replica gets; the first one's values are 1, the second one's 2."""
    recording = AddedUp(MetricTotals(plain(compiled)))
    reduction = Reduction(transport_of(strategy), recording, flags, **options)

    def replica():
        number = int(tf.get_static_value(real_context().replica_id_in_sync_group))
        own = tf.constant(number + 1.0)
        count = tf.constant(COUNTS[number])
        # A place that comes from the data: constants are the same on all replicas.
        place = tf.random.uniform([1], number, number + 1, dtype=tf.int32)
        sparse = tf.IndexedSlices(own[None, None], place, tf.constant([2, 1]))
        gradients = [own[None], None, sparse, tf.cast(own, tf.float16)]
        output = ReplicaOutput(
            gradients,
            metrics=[own, tf.fill([2], own)],
            state=[tf.constant(5 + number), tf.fill([2], own)],
            logs={"a": own, "b": 10 * own},
            outputs=None,
            updated=[tf.constant(6.0)],
        )
        piece = Slice(None, count, tf.cast(count, tf.float32) / nominal)
        return reduction(output, piece, gradients)

    return on_each(strategy, replica)


@pytest.mark.parametrize("build", ["mirrored_strategy", "central_storage_strategy"])
@pytest.mark.parametrize(("nominal", "weights_add_up"), [(7, True), (10, False)])
def test_sums_and_averages_over_two_replicas(devices, build, nominal, weights_add_up):
    strategy = getattr(tfdist, build)(devices[:2])
    flags = WorkerFlags()
    flags.set(Flag.STOP_TRAINING)
    one, two = reduce(strategy, nominal, flags, weights_add_up=weights_add_up)
    weight = 7 / nominal
    dense, none, sparse, half = one.gradients
    np.testing.assert_allclose(dense, [3 / weight], rtol=1e-6)
    assert none is None
    np.testing.assert_allclose(sparse, [[1 / weight], [2 / weight]], rtol=1e-6)
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, 3 / weight, rtol=1e-3)
    assert one.weight == pytest.approx(weight)
    assert [m.tolist() for m in one.metrics] == [3.0, [3.0, 3.0]]
    mean = (3 * 1 + 4 * 2) / 7
    np.testing.assert_allclose(one.state[1], [mean, mean], rtol=1e-6)
    assert one.logs == pytest.approx({"a": mean, "b": 10 * mean})
    assert (int(one.state[0]), int(two.state[0])) == (5, 6)  # Whole numbers are left alone.
    assert float(one.updated[0]) == 6.0
    assert two.gradients[0] == one.gradients[0]
    assert flags.seen(Flag.STOP_TRAINING)
    assert not flags.seen(Flag.SAVE_AND_END)


def test_what_one_replica_has_is_all_there_is(devices):
    strategy = tfdist.one_device_strategy(devices[0])
    (one,) = reduce(strategy, 10, WorkerFlags(), weights_add_up=False)
    assert float(one.gradients[0][0]) == float(one.metrics[0]) == one.logs["a"] == 1.0
    assert (one.state[1].tolist(), int(one.state[0])) == ([1.0, 1.0], 5)
    assert float(one.updated[0]) == 6.0
    assert one.weight == pytest.approx(0.3)


class Positions(keras.Model):
    """Adds an embedding of each word's position, the same places for all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.words = keras.layers.Embedding(9, 3)
        self.positions = keras.layers.Embedding(5, 3)
        self.last = keras.layers.Dense(1)

    def call(self, x):
        return self.last(self.words(x) + self.positions(keras.ops.arange(0, 5)))


def test_values_for_constant_places_are_added_up(devices):
    words = np.arange(40).reshape(8, 5) % 9
    targets = np.sin(words)[..., None]
    fitted = []
    for strategy in (None, tfdist.mirrored_strategy(devices[:2])):
        keras.utils.set_random_seed(1)
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = Positions()
            model.compile(keras.optimizers.Adam(0.1), "mse")
        fit = tfdist.Trainer(model).fit if strategy else model.fit
        fit(words, targets, batch_size=8, epochs=3, shuffle=False, verbose=0)
        fitted.append(model.get_weights())
    for one, two in zip(*fitted, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)
