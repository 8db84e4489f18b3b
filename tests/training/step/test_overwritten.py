"""What is overwritten with its gradient is the largest of the replicas that have rows."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.collectives.replicas import on_replicas
from tfdist.collectives.tensorflow import TensorFlowTransport
from tfdist.collectives.transport import SingleReplica
from tfdist.training.step.overwritten import split, without


def variables():
    """A weight between two that are overwritten."""
    made = [keras.Variable(np.zeros(shape, "float32")) for shape in ((), (2,), (3,))]
    for variable in (made[0], made[2]):
        variable.overwrite_with_gradient = True
    return made


def test_the_largest_value_of_each_is_taken_and_a_replica_without_rows_has_seen_nothing(devices):
    weights = variables()
    values = [weight.value for weight in weights]
    transport = TensorFlowTransport(3)

    def largest(given):
        count, scale, history = given
        rest, new = split([scale, count, history], values, weights, count, transport)
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
    weights = variables()
    values = [tf.constant(4.0), None, tf.constant([1.0, 2.0, 3.0])]
    rest, new = split([None, 1.0, None], values, weights, tf.constant(1), SingleReplica())
    assert rest == [None, 1.0, None]
    assert [value.numpy().tolist() for value in new] == [4, [1, 2, 3]]
    assert without(["a", "b", "c"], weights) == ["b"]
