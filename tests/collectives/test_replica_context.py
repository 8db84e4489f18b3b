"""Keras sees one replica, while what it reduces over all replicas reaches every one of them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.collectives.replicas import on_replicas
from tfdist.collectives.replica_context import OneReplicaView, ReducedView, real_context
from tfdist.collectives.tensorflow import TensorFlowTransport

TRANSPORT = TensorFlowTransport(2)


@pytest.fixture
def strategy(devices):
    return tfdist.mirrored_strategy(devices[:2])


def view(count=1):
    return OneReplicaView(real_context(), tf.convert_to_tensor(count), TRANSPORT)


def reduced(strategy, values, how, counts=(1, 1)):
    def reduce(given):
        value, count = given
        with view(count):
            return tf.distribute.get_replica_context().all_reduce(how, value)

    return on_replicas(strategy, list(zip(values, counts, strict=True)), reduce)


def test_keras_scales_no_loss_as_it_sees_one_replica(strategy):
    def losses(error):
        loss = keras.losses.MeanSquaredError()
        outside = loss(error, tf.zeros_like(error))
        with view():
            assert tf.distribute.get_strategy().num_replicas_in_sync == 1
            assert not tf.distribute.has_strategy()
            return outside, loss(error, tf.zeros_like(error))

    values = [np.array([[3.0], [1.0]], "float32"), np.array([[2.0]], "float32")]
    results = on_replicas(strategy, values, losses)
    assert [(float(a), float(b)) for a, b in results] == [(2.5, 5.0), (2.0, 4.0)]


@pytest.mark.parametrize("how", ["SUM", tf.distribute.ReduceOp.SUM])
def test_a_sum_reaches_both_replicas_in_the_structure_it_came_in(strategy, how):
    values = [{"a": np.float32(r + 1), "b": [np.array([r, 5.0])]} for r in range(2)]
    for result in reduced(strategy, values, how):
        assert float(result["a"]) == 3.0
        assert result["b"][0].numpy().tolist() == [1.0, 10.0]


@pytest.mark.parametrize("how", ["mean", "MEAN", tf.distribute.ReduceOp.MEAN])
def test_a_mean_is_over_all_replicas(strategy, how):
    assert [float(r) for r in reduced(strategy, [1.0, 4.0], how)] == [2.5, 2.5]


def test_a_replica_without_rows_adds_nothing(strategy):
    """Not even what is no number: a stand-in row may give anything."""
    values = [np.array([2.0, 3.0]), np.array([np.nan, np.inf])]
    for result in reduced(strategy, values, "SUM", counts=(4, 0)):
        assert result.numpy().tolist() == [2.0, 3.0]


@pytest.mark.parametrize(("counts", "wanted"), [((1, 1), [7.0, 7.0]), ((1, 0), [2.0, 0.0])])
def test_the_gradient_is_reduced_as_the_value_was(strategy, counts, wanted):
    """Each replica multiplies the sum by its own factor, 2 and 5: both depend on every input.

    A replica without rows depends on nothing, and nothing on it.
    """

    def gradient(given):
        value, factor, count = given
        with view(count), tf.GradientTape() as tape:
            tape.watch(value)
            total = tf.distribute.get_replica_context().all_reduce("SUM", value)
            loss = total * factor
        return tape.gradient(loss, value)

    values = [(np.float32(1 + r), np.float32((2, 5)[r]), counts[r]) for r in range(2)]
    assert [float(g) for g in on_replicas(strategy, values, gradient)] == wanted


def test_synchronized_batch_normalization_sees_the_rows_of_all_replicas(strategy):
    with strategy.scope():
        layer = keras.layers.BatchNormalization(synchronized=True, epsilon=0.0)
        layer.build((None, 1))

    def normalize(rows):
        with view(), keras.StatelessScope():
            return layer(rows, training=True)

    rows = np.array([[0.0], [0.0], [4.0], [8.0]], "float32")
    outputs = on_replicas(strategy, [rows[:2], rows[2:]], normalize)
    wanted = (rows - rows.mean()) / rows.std()
    np.testing.assert_allclose(np.concatenate(outputs), wanted, rtol=1e-6)


def test_what_is_reduced_already_is_left_as_it_is(strategy):
    def reduce(value):
        with ReducedView(real_context()):
            assert tf.distribute.get_strategy() is strategy
            return tf.distribute.get_replica_context().all_reduce("SUM", value)

    assert [float(v) for v in on_replicas(strategy, [1.0, 1.0], reduce)] == [1.0, 1.0]


def test_the_real_context_is_found_behind_any_views(strategy):
    def look(value):
        real = tf.distribute.get_replica_context()
        one = view()
        two = ReducedView(real)
        with one, two, ReducedView(two):
            assert real_context() is real
        with one, two:
            numbers = [tf.get_static_value(c.replica_id_in_sync_group) for c in (real, one, two)]
            assert len(set(map(int, numbers))) == 1

            def across(whole, given):
                assert whole is strategy and tf.distribute.in_cross_replica_context()
                return whole.reduce("SUM", given, axis=None)

            total = two.merge_call(across, args=(value,))
            assert tf.distribute.get_replica_context() is two
        assert tf.distribute.get_replica_context() is real
        return tf.identity(total)

    assert [float(v) for v in on_replicas(strategy, [1.0, 2.0], look)] == [3.0, 3.0]


def test_summaries_are_written_again_after_a_view(devices, tmp_path):
    """They would look for the number of a replica, in a graph that is gone by then."""
    strategy = tfdist.one_device_strategy(devices[0])

    def replica():
        with OneReplicaView(real_context(), tf.constant(1), TensorFlowTransport(1)):
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(2.0))

    assert float(tf.function(lambda: strategy.run(replica), autograph=False)()) == 2.0
    with tf.summary.create_file_writer(str(tmp_path)).as_default(step=0):
        assert bool(tf.summary.scalar("number", 1.0))
