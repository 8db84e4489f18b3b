"""Small tensors that go together arrive as they were, and go as one."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tfdist.training.step import packing
from tfdist.training.step.packing import read_packed, send_packed

SHAPES = [(3, 4), (), (5,), (200, 100), (7,), (2,)]
TYPES = ["float32", "float32", "float32", "float32", "int32", "float64"]


def variables():
    random = np.random.default_rng(0)
    return [
        keras.Variable(random.normal(size=shape) * 9, dtype=dtype, trainable=False)
        for shape, dtype in zip(SHAPES, TYPES, strict=True)
    ]


def traced(function, *arguments):
    return tf.function(function, autograph=False).get_concrete_function(*arguments)


def reads_by_themselves(graph):
    """The types of what reads that is not put together with others feeds."""
    operations = graph.get_operations()
    joined = {
        t.op.inputs[0].op for op in operations if op.type == "ConcatV2" for t in op.inputs[:-1]
    }
    return [op for op in operations if op.type == "ReadVariableOp" and op not in joined]


def test_values_are_read_as_they_are():
    there = variables()
    function = traced(lambda: read_packed(there))
    for value, variable in zip(function(), there, strict=True):
        assert value.shape == variable.shape
        np.testing.assert_array_equal(value.numpy(), variable.numpy())


def test_small_ones_of_a_type_come_as_one():
    there = variables()
    graph = traced(lambda: read_packed(there)).graph
    # The large one, and those that are alone of their types.
    assert len(reads_by_themselves(graph)) == 3
    assert [op.type for op in graph.get_operations()].count("ConcatV2") == 1


def test_values_arrive_as_they_were_sent():
    there = variables()
    given = [tf.constant(v.numpy() + 1) for v in there]
    function = traced(lambda *values: send_packed(list(values), there), *given)
    for sent, value in zip(function(*given), given, strict=True):
        np.testing.assert_array_equal(sent.numpy(), value.numpy())
    split = [op for op in function.graph.get_operations() if op.type == "SplitV"]
    assert len(split) == 1 and split[0].device == there[0].value.device


def test_what_is_not_dense_or_of_another_type_is_left_alone():
    there = variables()[:3]
    rows = tf.IndexedSlices(tf.ones([1, 4]), tf.constant([2]), tf.constant([3, 4]))
    sent = send_packed([rows, None, tf.ones([5])], there)
    assert sent[0] is rows and sent[1] is None
    other = tf.constant(1, tf.int32)
    assert send_packed([tf.ones([3, 4]), other, tf.ones([5])], there)[1] is other


def test_gradients_flow_through_what_is_read():
    there = [keras.Variable(np.ones(3, "float32")), keras.Variable(np.ones((), "float32"))]

    @tf.function
    def gradients():
        values = read_packed(there)
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = tf.reduce_sum(values[0] ** 2) * values[1]
        return tape.gradient(loss, values)

    first, second = gradients()
    assert first.numpy().tolist() == [2, 2, 2] and float(second) == 3


def test_large_means_a_message_of_its_own(monkeypatch):
    monkeypatch.setattr(packing, "SMALL_BYTES", 4)
    there = variables()
    graph = traced(lambda: read_packed(there)).graph
    assert len(reads_by_themselves(graph)) == len(SHAPES)
