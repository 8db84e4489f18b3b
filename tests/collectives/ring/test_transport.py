"""Tensors go through the ring and come back, and their memory is theirs for as long as it is seen.

A ring of one worker moves nothing; memory, types and shapes are as with more.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.ring import transport as transport_module
from tfdist.collectives.ring.buffers import Buffers
from tfdist.collectives.ring.failure import RingError
from tfdist.collectives.ring.ring import Ring
from tfdist.collectives.ring.transport import RingTransport
from tfdist.errors import ConfigError

LARGE = (300, 400)  # Of float32: beyond what is simply made anew.


@pytest.fixture(params=["graph", "eager"])
def called(request):
    """Calls a function of tensors."""

    def call(function, *tensors):
        if request.param == "eager":
            return function(*tensors)
        return tf.function(function, autograph=False)(*tensors)

    return call


@pytest.fixture(params=["in turn", "overlapping"])
def transport(request, monkeypatch):
    monkeypatch.setattr(transport_module, "BUCKET_BYTES", 100)
    return RingTransport(Ring(0, 1, None), overlaps=request.param == "overlapping")


def test_types_shapes_and_values_are_kept(transport, called):
    values = [
        tf.random.normal(LARGE),
        tf.constant(3),
        tf.constant([1.0, 2.0], tf.bfloat16),
        tf.constant(2.5),
        tf.zeros([0, 3]),
        tf.constant([1, 2], tf.int64),
    ]
    for method in (transport.sum, transport.sum_small, transport.sum_gradients):
        found = called(lambda *given, method=method: method(given), *values)
        assert [(t.dtype, t.shape) for t in found] == [(t.dtype, t.shape) for t in values]
        for one, other in zip(found, values, strict=True):
            assert np.array_equal(one.numpy(), other.numpy())


def test_gradients_may_be_sparse_or_absent(transport, called):
    def gradients(values, indices, dense):
        slices = tf.IndexedSlices(values, indices, tf.constant([9, 2]))
        first, none, last = transport.sum_gradients([slices, None, dense])
        assert none is None and isinstance(first, tf.IndexedSlices)
        assert first.values.shape[1:] == [2] and last.shape == [3]
        return first.values, first.indices, last

    found = called(gradients, tf.ones([4, 2]), tf.constant([1, 1, 0, 8]), tf.ones([3]))
    assert np.array_equal(found[1].numpy(), [1, 1, 0, 8])


def test_a_structure_is_gathered(transport, called):
    def gather(flags, rows):
        return transport.gather({"a": flags, "b": None, "c": (rows,)})

    found = called(gather, tf.constant([True, False]), tf.zeros([0, 3]))
    assert found["b"] is None
    assert found["a"].numpy().tolist() == [True, False] and found["c"][0].shape == [0, 3]


def test_strings_are_refused(transport):
    with pytest.raises(ConfigError, match="gather: tensors of type string"):
        transport.gather(tf.constant(["a"]))


def test_static_shapes_are_known_in_a_graph(transport):
    @tf.function(autograph=False)
    def trace(x):
        assert transport.sum([x])[0].shape == [2, 3]
        assert transport.broadcast([x])[0].shape == [2, 3]
        assert transport.gather(x).shape.as_list() == [None, 3]
        return x

    trace(tf.ones([2, 3]))


def test_what_a_variable_keeps_is_not_overwritten(transport):
    """Assigning takes the memory over; the next sums must go elsewhere."""
    kept = [tf.Variable(tf.zeros(LARGE)) for _ in range(3)]
    latest = tf.Variable(tf.zeros(LARGE))

    @tf.function(autograph=False)
    def step(number):
        (total,) = transport.sum([tf.fill(LARGE, tf.cast(number, tf.float32))])
        latest.assign(total)
        for i, variable in enumerate(kept):
            tf.cond(
                tf.equal(number % 3, i), lambda v=variable: v.assign(total), lambda v=variable: v
            )

    for number in range(60):
        step(tf.constant(number))
        if number >= 3:
            for i, variable in enumerate(kept):
                want = number - (number - i) % 3
                assert (variable.numpy() == want).all()
        assert (latest.numpy() == number).all()


def test_a_loop_adds_up_what_it_should(transport):
    weights, momentum = tf.Variable(tf.zeros(LARGE)), tf.Variable(tf.zeros(LARGE))

    @tf.function(autograph=False)
    def steps(count):
        def body(i):
            (gradient,) = transport.sum_gradients([weights * 0.5 + 1.0])
            momentum.assign(momentum * 0.9 + gradient)
            weights.assign_sub(0.1 * momentum)
            return (i + 1,)

        tf.while_loop(lambda i: i < count, body, (tf.constant(0),), parallel_iterations=1)

    steps(tf.constant(100))
    w = m = np.float32(0)
    for _ in range(100):
        m = np.float32(m * np.float32(0.9) + (w * np.float32(0.5) + np.float32(1)))
        w = np.float32(w - np.float32(0.1) * m)
    np.testing.assert_allclose(weights.numpy(), w, rtol=1e-5)
    assert len(np.unique(weights.numpy())) == 1


def test_results_outlive_later_calls(transport, called):
    def add(x):
        return transport.sum([x])[0]

    found = [called(add, tf.fill(LARGE, float(i))) for i in range(8)]
    assert [float(x[0, 0]) for x in found] == list(range(8))
    arrays = [x.numpy() for x in found]
    del found
    [called(add, tf.fill(LARGE, -1.0)) for _ in range(4)]
    assert [x[0, 0] for x in arrays] == list(range(8))


def test_memory_is_used_again_once_it_is_let_go():
    buffers = Buffers()
    first = buffers.take(1 << 20)
    place = first.ctypes.data
    assert place % 64 == 0
    view = first[64:128].view(np.float32)
    del first
    second = buffers.take(1 << 20)
    assert second.ctypes.data != place
    del view
    assert buffers.take(1 << 20).ctypes.data == place


def test_steps_use_the_same_memory(transport):
    @tf.function(autograph=False)
    def step(x):
        return tf.reduce_sum(transport.sum([x])[0])

    for _ in range(10):
        step(tf.ones(LARGE))
    (kept,) = transport._buffers._kept.values()
    assert len(kept) == 1


def test_overlapped_sums_begin_before_the_last_gradient_is_there(monkeypatch):
    """The last weights' gradients are summed while those of the first are still computed."""
    monkeypatch.setattr(transport_module, "BUCKET_BYTES", 100)
    transport = RingTransport(Ring(0, 1, None), overlaps=True)
    events = []
    real = transport._begin

    def begin(arrays, wire):
        events.append([float(array.reshape(-1)[0]) for array in arrays])
        return real(arrays, wire)

    monkeypatch.setattr(transport, "_begin", begin)

    def late(value):
        # The first gradient waits for the sums of the second to begin.
        while not events:
            time.sleep(0.01)
        return value

    @tf.function(autograph=False)
    def step(x):
        first = tf.numpy_function(late, [x], tf.float32, stateful=False)
        first.set_shape([100])
        return transport.sum_step([tf.constant(3.0)], [first, x * 2.0])

    small, (first, second) = step(tf.ones([100]))
    assert events == [[2.0], [1.0], [3.0]]
    assert float(small[0]) == 3.0 and float(first[0]) == 1.0 and float(second[0]) == 2.0


def test_a_failure_of_an_overlapped_sum_reaches_the_step(monkeypatch):
    ring = Ring(0, 1, None)
    transport = RingTransport(ring, overlaps=True)

    def lost(*_, **__):
        raise RingError("worker/1 was lost")

    monkeypatch.setattr(ring, "all_reduce", lost)
    with pytest.raises(tf.errors.OpError, match="worker/1 was lost"):
        tf.function(lambda x: transport.sum_gradients([x]), autograph=False)(tf.ones([3]))
