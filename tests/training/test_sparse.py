"""Arithmetic on gradients of every kind."""

import numpy as np
import pytest

from tfdist.training import sparse


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
