"""One replica's transport gives back what it has, as TensorFlow's does on one device."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.collectives.replicas import on_replicas
from tfdist.collectives.ring.transport import RingTransport
from tfdist.collectives.tensorflow import TensorFlowTransport
from tfdist.collectives.transport import SingleReplica, Transport

METHODS = ["sum", "sum_small", "sum_gradients", "gather", "broadcast"]


@pytest.mark.parametrize("kind", [SingleReplica, TensorFlowTransport, RingTransport])
def test_each_transport_has_every_method_with_the_same_arguments(kind):
    public = [name for name, _ in inspect.getmembers(Transport, inspect.isfunction)]
    assert sorted(METHODS) == sorted(name for name in public if not name.startswith("_"))
    for name in METHODS:
        wanted = inspect.signature(getattr(Transport, name)).parameters
        assert list(inspect.signature(getattr(kind, name)).parameters) == list(wanted)


def test_there_is_one_replica():
    assert SingleReplica().replicas == SingleReplica.replicas == 1


@pytest.mark.parametrize("method", METHODS)
def test_what_it_has_is_all_there_is(method):
    values = [tf.constant([1.5, -2.0]), tf.constant([[3, 4]]), tf.constant([True])]
    result = getattr(SingleReplica(), method)(values)
    assert all(one is other for one, other in zip(result, values, strict=True))
    if method != "gather":
        # The caller may put other values into its list.
        assert type(result) is list and result is not values


def test_gradients_keep_their_kinds():
    sparse = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([4, 1]), tf.constant([5, 3]))
    gradients = [None, sparse, tf.constant(2.0)]
    result = SingleReplica().sum_gradients(tuple(gradients))
    assert [one is other for one, other in zip(result, gradients, strict=True)] == [True] * 3


def test_a_structure_is_gathered_as_it_is():
    structure = {"a": tf.zeros([0, 2]), "b": (None, tf.constant([1]))}
    assert SingleReplica().gather(structure) is structure


@pytest.mark.parametrize("method", METHODS)
def test_tensorflow_gives_the_same_on_one_device(devices, method):
    strategy = tfdist.one_device_strategy(devices[0])
    values = [np.array([[3, 2**40]]), np.array([7, -1])]

    def both(given):
        return [
            getattr(transport, method)(given)
            for transport in (SingleReplica(), TensorFlowTransport(1))
        ]

    ((ours, theirs),) = on_replicas(strategy, [values], both)
    for one, other, value in zip(ours, theirs, values, strict=True):
        np.testing.assert_array_equal(one, value, strict=True)
        np.testing.assert_array_equal(other, value, strict=True)
