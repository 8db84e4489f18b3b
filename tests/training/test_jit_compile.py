"""`compile(jit_compile=True)`: XLA on one replica, as in Keras' own loop."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist


class Digits(keras.layers.Layer):
    """Adds zero in a way for which XLA has no kernel."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        length = tf.strings.length(tf.strings.as_string(inputs))
        return inputs + 0.0 * tf.cast(length, inputs.dtype)


def trainer(jit_compile: bool) -> tfdist.Trainer:
    with tfdist.build_strategy("one_device").scope():
        model = keras.Sequential([keras.Input((3,)), Digits(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=jit_compile)
    return tfdist.Trainer(model)


@pytest.mark.parametrize("call", ["fit", "evaluate", "predict"])
def test_what_xla_cannot_compile_shows_that_it_compiles(call: str) -> None:
    x = np.ones((4, 3), np.float32)
    data = (x,) if call == "predict" else (x, x[:, :1])
    getattr(trainer(jit_compile=False), call)(*data, verbose=0)
    with pytest.raises(tf.errors.OpError, match="(?i)xla"):
        getattr(trainer(jit_compile=True), call)(*data, verbose=0)
