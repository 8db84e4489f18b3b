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
ALL = [*METHODS, "sum_step"]


@pytest.mark.parametrize("kind", [SingleReplica, TensorFlowTransport, RingTransport])
def test_each_transport_has_every_method_with_the_same_arguments(kind):
    public = [name for name, _ in inspect.getmembers(Transport, inspect.isfunction)]
    assert sorted(ALL) == sorted(name for name in public if not name.startswith("_"))
    for name in ALL:
        assert name in vars(kind)
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


def test_a_steps_sums_are_those_of_its_parts(devices):
    values = [tf.constant([1.5, -2.0]), tf.constant(3)]
    gradients = [None, tf.constant([2.0])]
    small, large = SingleReplica().sum_step(values, gradients)
    assert small == values and large == gradients and small is not values
    strategy = tfdist.mirrored_strategy(devices[:2])

    def both(number):
        real = tf.cast(number, tf.float32)
        own, total = TensorFlowTransport(2).sum_step([number, real * [1.5, -2.0]], [None, real * 2])
        assert total[0] is None
        return [*own, total[1]]

    for sums in on_replicas(strategy, [1, 10], both):
        assert [value.numpy().tolist() for value in sums] == [11, [16.5, -22.0], 22.0]


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
