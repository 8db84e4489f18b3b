"""Sums over two replicas are plain sums to the bit, and what is gathered keeps their order."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.collectives.replicas import on_replicas
from tfdist.collectives.tensorflow import TensorFlowTransport


@pytest.fixture(params=["mirrored", "central_storage"])
def strategy(request, devices):
    return getattr(tfdist, f"{request.param}_strategy")(devices[:2])


def draw(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).normal(0, 100, shape).astype(dtype)


def equal(result, wanted):
    np.testing.assert_array_equal(np.asarray(result), np.asarray(wanted), strict=True)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_a_sum_is_exact_in_its_own_type(strategy, dtype):
    values = [draw(5, 3, dtype=dtype, seed=seed) for seed in range(2)]
    # In a narrower wire type, too: that is for gradients.
    transport = TensorFlowTransport(2, wire_type="bfloat16")
    for (total,) in on_replicas(strategy, values, lambda value: transport.sum([value])):
        equal(total, values[0] + values[1])


def test_small_tensors_travel_together_and_come_back_in_place(strategy):
    kinds = [((), "float32"), ((2, 3), "int32"), ((0,), "float32"), ((4,), "float64")]
    kinds += [((1, 1, 2), "int32"), ((), "float64")]
    values = [
        [draw(*shape, dtype=dtype, seed=9 * n + len(dtype)) for shape, dtype in kinds]
        for n in range(2)
    ]

    class Counting(TensorFlowTransport):
        collectives = 0

        def sum(self, values):
            Counting.collectives += 1
            return super().sum(values)

    for totals in on_replicas(strategy, values, Counting(2).sum_small):
        for total, one, other in zip(totals, *values, strict=True):
            equal(total, one + other)
    assert Counting.collectives == 2 * 3  # One a type on each replica.


@pytest.mark.parametrize("bytes_per_pack", [0, 16])
def test_gradients_dense_sparse_and_absent_are_summed(strategy, bytes_per_pack):
    dense = [draw(4, 2, seed=seed) for seed in range(2)]
    half = [draw(3, dtype="float16", seed=2 + seed) for seed in range(2)]
    rows = [draw(3, 2, seed=4), draw(2, 2, seed=5)]
    indices = [np.array([5, 0, 5]), np.array([0, 2])]
    more = [draw(7, seed=6 + seed) for seed in range(2)]
    transport = TensorFlowTransport(2, bytes_per_pack=bytes_per_pack)

    def add(given):
        dense, half, rows, indices, more = given
        sparse = tf.IndexedSlices(rows, indices, tf.constant([6, 2], tf.int64))
        sums = transport.sum_gradients([dense, None, half, sparse, more])
        assert sums[1] is None
        assert isinstance(sums[3], tf.IndexedSlices)
        return [sums[0], sums[2], tf.convert_to_tensor(sums[3]), sums[4]]

    wanted = np.zeros((6, 2), "float32")
    for rows_of_one, places in zip(rows, indices, strict=True):
        np.add.at(wanted, places, rows_of_one)
    plain = [dense[0] + dense[1], half[0] + half[1], wanted, more[0] + more[1]]
    values = list(zip(dense, half, rows, indices, more, strict=True))
    for sums in on_replicas(strategy, values, add):
        for total, sum_ in zip(sums, plain, strict=True):
            equal(total, sum_)


@pytest.mark.parametrize("narrow", ["float16", ml_dtypes.bfloat16])
def test_a_narrow_wire_rounds_dense_float32_and_nothing_else(strategy, narrow):
    single = [draw(50, seed=seed) for seed in range(2)]
    double = [draw(50, dtype="float64", seed=seed) for seed in range(2)]
    rows = [draw(1, 2, seed=seed) for seed in range(2)]
    transport = TensorFlowTransport(2, wire_type=np.dtype(narrow).name)

    def add(given):
        single, double, rows = given
        sums = transport.sum_gradients(
            [single, double, tf.IndexedSlices(rows, tf.constant([0]), tf.constant([1, 2]))]
        )
        return [*sums[:2], tf.convert_to_tensor(sums[2])]

    rounded = (single[0].astype(narrow) + single[1].astype(narrow)).astype("float32")
    assert (rounded != single[0] + single[1]).any()
    for sums in on_replicas(strategy, list(zip(single, double, rows, strict=True)), add):
        equal(sums[0], rounded)
        equal(sums[1], double[0] + double[1])
        equal(sums[2], rows[0] + rows[1])


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        ("bool", [1, 0, 0, 1, 1, 0]),
        ("uint8", [0, 255, 1, 128, 2, 3]),
        ("uint32", [2**32 - 1, 2**31, 2, 3, 4, 5]),
        ("int64", [2**62 + 1, -1, 2, 3, 4, 5]),
        ("float32", [0.1, 0.2, -0.3, 1e-30, 4, 5]),
        (ml_dtypes.bfloat16, [0.5, 0.25, -1.5, 3e30, 4, 5]),
    ],
)
def test_what_is_gathered_is_in_the_replicas_order(strategy, dtype, numbers):
    """The first dimensions differ, and one may be nothing at all."""
    rows = np.array(numbers).astype(dtype).reshape(3, 2)
    values = [(rows, np.zeros(0, dtype)), (rows[2:], rows[0])]
    transport = TensorFlowTransport(2)

    def gather(given):
        found = transport.gather({"x": given[0], "none": None, "y": [given[1]]})
        assert found["none"] is None
        return found["x"], found["y"][0]

    for x, y in on_replicas(strategy, values, gather):
        equal(x, np.concatenate([rows, rows[2:]]))
        equal(y, rows[0])


def test_the_shapes_may_differ_from_step_to_step_of_a_loop(devices):
    """Sparse gradients and gathered rows of a last batch, which is smaller on all replicas.

    TensorFlow's own MirroredStrategy has collectives between the devices of one process.
    """
    strategy = tf.distribute.MirroredStrategy(devices[:2])
    steps = [(4, 4), (2, 2), (4, 3), (1, 3), (3, 3)]
    values = [draw(4, 2, seed=seed) for seed in range(2)]
    transport = TensorFlowTransport(2)

    @tf.function(autograph=False)
    def loop(counts):
        totals = tf.TensorArray(tf.float32, 0, dynamic_size=True, infer_shape=False)

        def on_replica(of_replicas):
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            rows = tf.gather(np.stack(values), number)[: of_replicas[number]]
            indices = tf.range(tf.shape(rows)[0])
            sparse = tf.IndexedSlices(rows, indices, tf.constant([4, 2]))
            (total,) = transport.sum_gradients([sparse])
            return tf.convert_to_tensor(total), transport.gather(rows)

        def step(index, totals):
            results = strategy.run(on_replica, args=(counts[index],))
            total, gathered = (strategy.experimental_local_results(each)[1] for each in results)
            return index + 1, totals.write(index, tf.concat([total, gathered], axis=0))

        _, totals = tf.while_loop(
            lambda index, _: index < len(steps), step, (0, totals), parallel_iterations=1
        )
        return totals.concat()

    wanted = []
    for of_one, of_other in steps:
        one, other = values[0][:of_one], values[1][:of_other]
        padded = [np.pad(rows, ((0, 4 - len(rows)), (0, 0))) for rows in (one, other)]
        wanted += [padded[0] + padded[1], one, other]
    equal(loop(tf.constant(steps)), np.concatenate(wanted))


def test_what_is_broadcast_is_the_first_replicas(devices):
    strategy = tfdist.mirrored_strategy(devices[1:4])
    large = 2**62 + 1  # No floating-point number.
    values = [[np.array([large - r, r]), np.array([[5 + r]])] for r in range(3)]
    for found in on_replicas(strategy, values, TensorFlowTransport(3).broadcast):
        equal(found[0], values[0][0])
        equal(found[1], values[0][1])


def test_three_replicas_on_other_devices_are_all_counted(devices):
    strategy = tfdist.mirrored_strategy([devices[3], devices[0], devices[2]])
    values = [np.array([10.0**r]) for r in range(3)]
    transport = TensorFlowTransport(3)

    def both(value):
        return transport.sum([value])[0], transport.gather(value)

    for total, gathered in on_replicas(strategy, values, both):
        equal(total, [111.0])
        equal(gathered, [1.0, 10.0, 100.0])
