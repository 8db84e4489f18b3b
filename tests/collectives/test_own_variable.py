"""A variable of tfdist's is a plain one, whatever scope it is made in."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfdist
from tfdist.collectives.own_variable import own_variable


@pytest.mark.parametrize("name", ["mirrored", "central_storage"])
def test_a_replica_may_assign_it(devices, name):
    strategy = getattr(tfdist, f"{name}_strategy")(devices[:2])
    with strategy.scope():
        variable = own_variable(tf.zeros(2))
        strategy.run(tf.function(lambda: variable.assign([1.0, 2.0])))
    assert not isinstance(variable, tf.distribute.DistributedValues)
    assert (variable.numpy().tolist(), variable.trainable) == ([1.0, 2.0], False)
