"""Arithmetic on gradients of every kind, and weights that are overwritten with theirs."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.collectives.replicas import on_replicas
from tfdist.collectives.tensorflow import TensorFlowTransport
from tfdist.collectives.transport import SingleReplica
from tfdist.training.step import gradients as sparse
from tfdist.training.step.gradients import drop_overwritten, split_overwritten


@pytest.mark.parametrize(("operation", "result"), [(sparse.multiply, 6.0), (sparse.divide, 1.5)])
def test_a_dense_a_sparse_and_a_missing_gradient(operation, result):
    by = tf.constant(2.0)
    assert operation(None, by) is None
    np.testing.assert_array_equal(operation(tf.constant([3.0]), by), [result])
    slices = tf.IndexedSlices(tf.constant([[3.0]]), tf.constant([4]), tf.constant([9, 1]))
    changed = operation(slices, by)
    np.testing.assert_array_equal(changed.values, [[result]])
    np.testing.assert_array_equal(changed.indices, [4])
    np.testing.assert_array_equal(changed.dense_shape, [9, 1])


def test_the_type_of_the_gradient_stays():
    gradient = tf.constant([3.0], tf.bfloat16)
    assert sparse.divide(gradient, tf.constant(2.0)).dtype == tf.bfloat16


def test_gradients_by_what_was_assigned_join_those_by_the_value_before():
    one, two, three = (keras.Variable([float(i)]) for i in (1, 2, 3))
    values = [tf.convert_to_tensor(v.value) for v in (one, two, three)]
    with tf.GradientTape() as tape:
        tape.watch(values)
        later = [tf.constant([5.0]), tf.constant([6.0]), tf.constant([7.0])]
        tape.watch(later)
        loss = tf.reduce_sum(10 * values[0] + later[0] ** 2 + 3 * later[1] + 0 * values[2])
    replaced = [(one, later[0]), (two, later[1]), (three, later[2])]
    found = sparse.through_assignments(tape, loss, values, [one, two, three], replaced)
    assert [float(g[0]) for g in found] == [10 + 2 * 5, 3, 0]


def test_sparse_gradients_are_joined_too_and_without_assignments_left_alone():
    table = keras.Variable([[1.0], [2.0]])
    value = tf.convert_to_tensor(table.value)
    later = tf.constant([[3.0], [4.0]])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([value, later])
        loss = tf.reduce_sum(tf.gather(value, [1])) + tf.reduce_sum(tf.gather(later, [1, 1]))
    (alone,) = sparse.through_assignments(tape, loss, [value], [table], [])
    assert isinstance(alone, tf.IndexedSlices)
    (both,) = sparse.through_assignments(tape, loss, [value], [table], [(table, later)])
    np.testing.assert_array_equal(both, [[0.0], [3.0]])


def test_which_places_are_the_same_on_all_replicas():
    found = {}

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.int32)])
    def trace(words):
        found["words"] = sparse.is_constant(words)
        found["words, flat"] = sparse.is_constant(tf.reshape(words, (-1,)))
        found["rows"] = sparse.is_constant(tf.range(tf.shape(words)[0]))
        found["places"] = sparse.is_constant(tf.range(words.shape[1]))
        found["places, flat"] = sparse.is_constant(tf.reshape(tf.range(4), (-1,)))
        found["drawn"] = sparse.is_constant(tf.random.uniform((4,), maxval=4, dtype=tf.int32))
        return words

    trace.get_concrete_function()
    assert [name for name, constant in found.items() if constant] == ["places", "places, flat"]
    assert not sparse.is_constant(tf.constant([1]))  # Eagerly, that is not known.


def overwritten_variables():
    """A weight between two that are overwritten."""
    made = [keras.Variable(np.zeros(shape, "float32")) for shape in ((), (2,), (3,))]
    for variable in (made[0], made[2]):
        variable.overwrite_with_gradient = True
    return made


def test_the_largest_value_of_each_is_taken_and_a_replica_without_rows_has_seen_nothing(devices):
    weights = overwritten_variables()
    values = [weight.value for weight in weights]
    transport = TensorFlowTransport(3)

    def largest(given):
        count, scale, history = given
        rest, new = split_overwritten([scale, count, history], values, weights, count, transport)
        assert rest[0] is rest[2] is None
        return rest[1], new

    strategy = tfdist.mirrored_strategy(devices[:3])
    given = [
        (np.int32(2), np.float32(0.5), np.array([3, 0, 1], "float32")),
        (np.int32(1), np.float32(0.25), np.array([1, 2, 1], "float32")),
        (np.int32(0), np.float32(7), np.array([9, 9, 9], "float32")),
    ]
    for number, (gradient, (scale, history)) in enumerate(on_replicas(strategy, given, largest)):
        assert int(gradient) == given[number][0]  # A weight's gradient is left as it is.
        assert float(scale) == 0.5
        assert history.numpy().tolist() == [3, 2, 1]


def test_a_layer_that_was_not_called_keeps_what_it_has():
    weights = overwritten_variables()
    values = [tf.constant(4.0), None, tf.constant([1.0, 2.0, 3.0])]
    rest, new = split_overwritten(
        [None, 1.0, None], values, weights, tf.constant(1), SingleReplica()
    )
    assert rest == [None, 1.0, None]
    assert [value.numpy().tolist() for value in new] == [4, [1, 2, 3]]
    assert drop_overwritten(["a", "b", "c"], weights) == ["b"]
