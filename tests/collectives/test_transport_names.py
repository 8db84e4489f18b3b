"""Each name of a wire type rounds as the type of that name, and the default rounds nothing."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.collectives.replicas import on_replicas
from tfdist.collectives.tensorflow import TensorFlowTransport
from tfdist.collectives.transport_names import WIRE_BYTES, WIRE_TYPES, narrow_type

# Bits of the fraction of each type.
BITS = {"auto": 23, "float32": 23, "bfloat16": 7, "float16": 10}


def test_the_names_are_those_that_trainer_documents():
    assert list(WIRE_TYPES) == list(BITS)
    for name in WIRE_TYPES:
        assert (narrow_type(name) or name) == name
        assert (narrow_type(name) is None) == (name in ("auto", "float32"))


def test_the_bytes_are_those_of_each_type():
    assert {name: tf.as_dtype(name).size for name in WIRE_BYTES} == WIRE_BYTES


@pytest.mark.parametrize("name", list(BITS))
def test_a_sum_keeps_as_many_bits_as_the_type_has(devices, name):
    """One replica sends what just fits, and what just does not; the other sends nothing."""
    step = 2.0 ** -BITS[name]
    sent = np.array([1 + step, 1 + step / 2, -3.0], "float32")
    transport = TensorFlowTransport(2, wire_type=narrow_type(name))
    strategy = tfdist.mirrored_strategy(devices[:2])

    def add(value):
        return transport.sum_gradients([value])[0]

    for total in on_replicas(strategy, [sent, np.zeros_like(sent)], add):
        assert total.dtype == tf.float32
        assert total.numpy().tolist() == [1 + step, 1.0, -3.0]
