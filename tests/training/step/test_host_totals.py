"""Sums kept in NumPy are those that variables would hold."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tfdist.training.step.host_totals import HostTotals, pack
from tfdist.training.step.metrics import MetricTotals


def model():
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse", metrics=["mae", keras.metrics.AUC(num_thresholds=5)])
    x = np.ones((4, 2), "float32")
    made.evaluate(x, np.ones((4, 1)), verbose=0)
    return made


def increments(of, number):
    random = np.random.default_rng(number)
    return [tf.constant(random.normal(size=v.shape), v.dtype) for v in of.metrics_variables]


def test_they_are_the_bits_of_variables():
    made = model()
    plain, host = MetricTotals(made), HostTotals(made)
    for number in range(5):
        plain.add(increments(made, number))
        host.add_packed([vector.numpy() for vector in pack(increments(made, number))])
        if number == 2:  # They are read, and go on.
            assert host.results() == plain.results()
    for own, expected in zip(host.variables, plain.variables, strict=True):
        np.testing.assert_array_equal(own.numpy(), expected.numpy())
    assert host.results() == plain.results()


def test_a_reset_and_an_assignment_forget_what_was_not_read():
    made = model()
    host = HostTotals(made)
    added = [vector.numpy() for vector in pack(increments(made, 0))]
    host.add_packed(added)
    host.reset()
    assert not any(np.any(variable.numpy()) for variable in host.variables)
    host.add_packed(added)
    host.assign(increments(made, 1))
    for own, expected in zip(host.variables, increments(made, 1), strict=True):
        np.testing.assert_array_equal(own.numpy(), expected.numpy())


def test_each_type_travels_as_one_vector():
    values = [tf.ones((2, 2)), tf.constant(3), tf.ones(3), tf.constant([4])]
    first, second = pack(values)
    assert (first.shape, first.dtype) == ((7,), tf.float32)
    assert second.numpy().tolist() == [3, 4]
    assert pack([]) == []
