"""Losses of two replicas add up to that of the batch, however Keras divides them."""

from __future__ import annotations

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.training.step.replicas import (
    X,
    Y,
    added,
    built,
    dense,
    on_each,
    plain,
    slicer_of,
    tensors,
    train,
    transport_of,
)
from tfdist.collectives.transport import SingleReplica
from tfdist.errors import ConfigError
from tfdist.training.model.inspection import ModelVariables
from tfdist.training.step.patches.loss_sums import LossSums
from tfdist.training.step.probes.loss_probe import compares_examples
from tfdist.training.step.replica import KerasStep
from tfdist.training.step.slicing import by_nominal

losses = keras.losses
WEIGHTS = np.linspace(0.5, 2, 7, dtype="float32")[:, None]
# Of seven rows of two places: one is valid in the first three rows, five in the last four.
PLACES = np.array([[1, 0], [0, 0], [0, 0], [1, 2], [3, 0], [0, 1], [2, 0]])
LABELS = np.array([0, 1, 0, 2, 1, 0, 2])
OTHERS = np.tile(X[:, None], (1, 2, 1))


def furthest(y_true, y_pred):
    return keras.ops.max(keras.ops.abs(y_true - y_pred))


def linear(loss):
    def make() -> keras.Model:
        model = dense()
        model.compile("sgd", loss, weighted_metrics=[])
        return model

    return make


def masked(loss):
    def make() -> keras.Model:
        inputs = keras.Input((2,), dtype="int32")
        model = keras.Model(inputs, keras.layers.Embedding(4, 3, mask_zero=True)(inputs))
        model.compile("sgd", loss, weighted_metrics=[])
        return model

    return make


def embedding(loss):
    def make() -> keras.Model:
        layers = [keras.layers.Dense(4), keras.layers.UnitNormalization()]
        model = keras.Sequential([keras.Input((3,)), *layers])
        model.compile("sgd", loss)
        return model

    return make


def adding() -> keras.Model:
    class Adding(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.sum(x**2, axis=-1))  # a value for each example
            return x

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), Adding()])
    model.compile("sgd", "mse")
    return model


CASES = {
    "mean": (linear("mse"), (X, Y)),
    "weighted mean": (linear("mse"), (X, Y, WEIGHTS)),
    "sum": (linear(losses.MeanAbsoluteError("sum")), (X, Y)),
    "weighted sum": (linear(losses.MeanAbsoluteError("sum")), (X, Y, WEIGHTS)),
    "by weights": (linear(losses.MeanSquaredError("mean_with_sample_weight")), (X, Y, WEIGHTS)),
    "by no weights": (linear(losses.MeanSquaredError("mean_with_sample_weight")), (X, Y)),
    "masked": (masked("mse"), (PLACES, OTHERS)),
    "masked, weighted": (masked("mse"), (PLACES, OTHERS, WEIGHTS)),
    "masked sum": (masked(losses.MeanSquaredError("sum")), (PLACES, OTHERS)),
    "each example": (linear(losses.MeanSquaredError(None)), (X, Y)),
    "one number": (linear(furthest), (X, Y)),
    "over the batch": (linear(losses.Dice()), (X, Y**2)),
    "between examples": (embedding(losses.Circle()), (X, LABELS)),
    "added by a layer": (adding, (X, np.tile(Y, 2))),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_loss_of_two_replicas_are_those_of_the_batch(devices, name):
    make, data = CASES[name]
    strategy = tfdist.mirrored_strategy(devices[:2])
    model = built(strategy, make, data)
    step = KerasStep(model, ModelVariables.of(model), transport_of(strategy))
    outputs = train(strategy, step, data)
    alone = plain(make, data)
    with tf.GradientTape() as tape:
        y_pred = alone(data[0], training=True)
        loss = alone.compute_loss(data[0], data[1], y_pred, *data[2:])
    gradients = tape.gradient(loss, [v.value for v in alone.trainable_variables])
    for value, expected in zip(added([o.gradients for o in outputs]), gradients, strict=True):
        np.testing.assert_allclose(value, tf.convert_to_tensor(expected), rtol=1e-4, atol=1e-6)
    total, count = added([output.metrics for output in outputs])[:2]
    assert total / count == pytest.approx(np.mean(loss), rel=1e-5)


REFUSED = {
    "sum": "'mean_absolute_error' is a sum",
    "weighted sum": "'mean_absolute_error' is a sum",
    "masked": "mask's valid places",
    "masked, weighted": "mask's valid places",
    "masked sum": "'mean_squared_error' is a sum",
    "by weights": "mean by sample weights",
    "each example": "value for each example",
    "one number": "'furthest' compares",
    "over the batch": "'dice' compares",
    "between examples": "'circle' compares",
    "added by a layer": "add_loss has a value for each example",
}


@pytest.mark.parametrize("name", CASES)
def test_what_several_batches_cannot_make_up_is_refused_in_training_only(devices, name):
    make, data = CASES[name]
    strategy = tfdist.one_device_strategy(devices[0])
    model = built(strategy, make, data)
    step = KerasStep(
        model,
        ModelVariables.of(model),
        transport_of(strategy),
        accumulates=True,
    )
    slicer = slicer_of(strategy, data)
    with step.intercepting():
        on_each(strategy, lambda: step.test(slicer((tensors(data), 7))).metrics)
    if name in REFUSED:
        with pytest.raises(ConfigError, match=rf"accumulate_steps\): .*{REFUSED[name]}"):
            train(strategy, step, data, by_nominal(7))
    else:
        train(strategy, step, data, by_nominal(7))


def test_keras_is_as_it_was_after_the_step():
    def parts() -> list:
        return [
            keras.Loss.__call__,
            tf.GradientTape.gradient,
            sys.modules[keras.Loss.__module__].reduce_weighted_values,
        ]

    model = linear("mse")()
    before = parts()
    sums = LossSums(model, SingleReplica(), accumulates=True, compares=compares_examples)
    with sums:
        assert all(one is not other for one, other in zip(before, parts(), strict=True))
        # A loss outside of a replica's slice is not touched.
        loss = losses.MeanSquaredError("sum")
        assert float(loss(tf.ones((2, 1)), tf.zeros((2, 1)))) == 2.0
        count = tf.Variable(2)  # Its value is not known when the step is traced.
        with sums.of(tf.ones((2, 3)), count, training=False):
            assert sums.is_by_example(tf.ones(2))
            assert not sums.is_by_example(tf.ones(3))
            assert not sums.is_by_example(tf.constant(1.0))
            assert float(sums.whole_per_slice()) == 1.0
    assert parts() == before
    assert "_aggregate_additional_loss" not in vars(model)
