"""Arithmetic on gradients of every kind."""

import numpy as np
import pytest

from tfdist.training.step import gradients as sparse


@pytest.mark.parametrize(("operation", "result"), [(sparse.multiply, 6.0), (sparse.divide, 1.5)])
def test_a_dense_a_sparse_and_a_missing_gradient(operation, result):
    import tensorflow as tf

    by = tf.constant(2.0)
    assert operation(None, by) is None
    np.testing.assert_array_equal(operation(tf.constant([3.0]), by), [result])
    slices = tf.IndexedSlices(tf.constant([[3.0]]), tf.constant([4]), tf.constant([9, 1]))
    changed = operation(slices, by)
    np.testing.assert_array_equal(changed.values, [[result]])
    np.testing.assert_array_equal(changed.indices, [4])
    np.testing.assert_array_equal(changed.dense_shape, [9, 1])


def test_the_type_of_the_gradient_stays():
    import tensorflow as tf

    gradient = tf.constant([3.0], tf.bfloat16)
    assert sparse.divide(gradient, tf.constant(2.0)).dtype == tf.bfloat16


def test_gradients_by_what_was_assigned_join_those_by_the_value_before():
    import keras
    import tensorflow as tf

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
    import keras
    import tensorflow as tf

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
    import tensorflow as tf

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
    assert not sparse.is_constant(tf.constant([1]))  # Eagerly, it cannot be told.
