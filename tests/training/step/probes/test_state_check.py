"""An integer that a slice decides is refused; one that is the same for all slices is not."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import tfdist
from tests.training.step.replicas import X, dense
from tfdist.errors import ConfigError
from tfdist.runtime.log import LOGGER
from tfdist.training.step.probes.state_check import check_state


def checked(variable: keras.Variable, new_value) -> None:
    """Checks what a step assigns to the variable, for a slice of x and y."""
    model = dense()

    def graph(x, y) -> None:
        check_state([variable], [new_value(x, y)], (x, y), model)

    specs = [tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1])]
    tf.function(graph, autograph=False).get_concrete_function(*specs)


def count(name: str = "count") -> keras.Variable:
    return keras.Variable(0, dtype="int32", name=name)


@pytest.mark.parametrize(
    "new_value",
    [
        lambda x, y: tf.shape(x)[0],
        lambda x, y: 1 + tf.cast(tf.reduce_sum(y), tf.int32),
        lambda x, y: tf.cond(tf.reduce_sum(x) > 0, lambda: 1, lambda: 2),
    ],
)
def test_integers_of_a_slice_are_refused_by_name(new_value):
    with pytest.raises(ConfigError, match=r"Sequential: rows_seen is assigned an integer"):
        checked(count("rows_seen"), new_value)


def test_other_state_may_be_assigned():
    steps = count()
    checked(steps, lambda x, y: tf.convert_to_tensor(steps.value) + 1)
    checked(keras.Variable(0.0), lambda x, y: tf.reduce_sum(x))
    seed = keras.random.SeedGenerator(1).state
    checked(seed, lambda x, y: tf.cast(tf.shape(x), seed.dtype))


class Peak(keras.layers.Layer):
    def build(self, shape):
        self.peak = self.add_weight(shape=(), initializer="zeros", trainable=False, name="peak")

    def call(self, x):
        self.peak.assign(tf.maximum(self.peak, tf.reduce_max(x)))
        return x


def test_of_other_numbers_of_a_slice_the_user_is_warned_once(devices, monkeypatch):
    warnings = []
    monkeypatch.setattr(LOGGER, "warning", lambda text, *parts: warnings.append(text % parts))
    with tfdist.mirrored_strategy(devices[:2]).scope():
        layers = [keras.Input((3,)), Peak(), keras.layers.BatchNormalization()]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    for _ in range(2):
        tfdist.Trainer(model).fit(X, X[:, :1], batch_size=4, verbose=0)
    (line,) = warnings
    assert "/peak is" in line


def test_where_nothing_is_traced_nothing_can_be_warnings():
    x = tf.constant(X)
    check_state([count()], [tf.shape(x)[0]], x, dense())
