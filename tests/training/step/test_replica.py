"""What two replicas compute on their slices adds up to what Keras computes on the batch."""

from __future__ import annotations

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
    number,
    on_each,
    plain,
    slicer_of,
    tensors,
    train,
    transport_of,
)
from tfdist.errors import ConfigError
from tfdist.training.model.inspection import ModelVariables
from tfdist.training.step.replica import KerasStep


def linear(kind: type = keras.Sequential, *hidden: keras.Layer) -> keras.Model:
    model = kind([keras.Input((3,)), *hidden, keras.layers.Dense(1, kernel_regularizer="l2")])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def regression() -> keras.Model:
    return linear(keras.Sequential, keras.layers.Dense(4, "tanh", activity_regularizer="l2"))


def step_of(strategy, model: keras.Model, **options) -> KerasStep:
    return KerasStep(model, ModelVariables.of(model), transport_of(strategy), **options)


def reference(model: keras.Model) -> tuple[list, list]:
    """The gradients and the metrics' sums of plain Keras for the whole batch."""
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x=X, y=Y, y_pred=model(X, training=True))
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    model.test_on_batch(X, Y)
    return gradients, [v.numpy() for v in model.metrics_variables]


def close(values, expected) -> None:
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("build", ["mirrored_strategy", "central_storage_strategy"])
def test_gradients_and_metrics_add_up_and_nothing_is_assigned(devices, build):
    strategy = getattr(tfdist, build)(devices[:2])
    model = built(strategy, regression)
    outputs = train(strategy, step_of(strategy, model))
    gradients, metrics = reference(plain(regression))
    close(added([output.gradients for output in outputs]), gradients)
    close(added([output.metrics for output in outputs]), metrics)
    assert all(not v.numpy().any() for v in model.metrics_variables)
    assert all(output.state == [] and output.outputs is None for output in outputs)


def test_the_loss_scale_multiplies_the_gradients_and_not_the_loss(devices):
    strategy = tfdist.one_device_strategy(devices[0])
    step = step_of(strategy, built(strategy, regression))
    (output,) = train(strategy, step, loss_scale=16.0)
    gradients, metrics = reference(plain(regression))
    close(output.gradients, [16 * gradient for gradient in gradients])
    close(output.metrics, metrics)


def test_a_slice_without_rows_adds_nothing(devices):
    strategy = tfdist.mirrored_strategy(devices[:2])
    step = step_of(strategy, built(strategy, regression))
    none, one = train(strategy, step, (X[:1], Y[:1]))
    assert not any(np.any(value) for value in (*none.gradients, *none.metrics))
    assert any(np.any(value) for value in one.gradients)


def test_statistics_are_those_of_each_slice_and_are_told_beside_their_variables(devices):
    def make() -> keras.Model:
        return linear(keras.Sequential, keras.layers.BatchNormalization(momentum=0.5))

    strategy = tfdist.mirrored_strategy(devices[:2])
    model = built(strategy, make)
    step = step_of(strategy, model)
    outputs = train(strategy, step)
    assert step.changed["train"] == [model.layers[0].moving_mean, model.layers[0].moving_variance]
    for output, part in zip(outputs, (X[:3], X[3:]), strict=True):
        close(output.state, [part.mean(0) / 2, 0.5 + part.var(0) / 2])
    assert not model.layers[0].moving_mean.numpy().any()


def test_a_number_tracked_in_compute_loss_counts_for_the_slices_share(devices):
    class Tracking(keras.Sequential):
        def __init__(self, layers):
            super().__init__(layers)
            self.tracker = keras.metrics.Mean(name="largest")

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
            self.tracker.update_state(keras.ops.max(x))
            return keras.ops.mean((y - y_pred) ** 2)

    strategy = tfdist.mirrored_strategy(devices[:2])
    model = built(strategy, lambda: linear(Tracking))
    outputs = train(strategy, step_of(strategy, model))
    at = [id(v) for v in model.metrics_variables].index(id(model.tracker.total))
    total, count = added([output.metrics for output in outputs])[at : at + 2]
    assert total == pytest.approx((3 * X[:3].max() + 4 * X[3:].max()) / 7)
    assert count == pytest.approx(1)


class Own(keras.Sequential):
    def test_step(self, data):
        x, y = data
        return {"furthest": keras.ops.max(keras.ops.abs(self(x, training=False) - y))}

    def predict_step(self, data):
        return -self(data[0])


@pytest.mark.parametrize("kind", [keras.Sequential, Own])
def test_testing_and_predicting_leave_dropout_out_and_go_by_the_models_own_steps(devices, kind):
    strategy = tfdist.mirrored_strategy(devices[:2])
    model = built(strategy, lambda: linear(kind, keras.layers.Dropout(0.9)))
    step, slicer = step_of(strategy, model), slicer_of(strategy, (X, Y))

    def replica() -> tuple:
        piece = slicer((tensors((X, Y)), 7))
        return step.test(piece), step.predict(piece)[0]

    with step.intercepting():
        (one, first), (two, second) = on_each(strategy, replica)
    alone = plain(linear)
    y_pred = alone(X)
    predicted = np.concatenate([first, second])
    if kind is Own:
        errors = np.abs(y_pred - Y)
        assert one.logs["furthest"] == pytest.approx(errors[:3].max())
        assert two.logs["furthest"] == pytest.approx(errors[3:].max())
        close(predicted, -y_pred)
    else:
        close(added([one.metrics, two.metrics]), reference(alone)[1])
        assert one.logs == {}
        close(predicted, y_pred)


def test_metrics_come_after_the_update_and_see_its_number(devices):
    class Counting(keras.Sequential):
        def __init__(self, layers):
            super().__init__(layers)
            self.number = keras.metrics.Mean(name="number")

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            self.number.update_state(self.optimizer.iterations.value)
            return super().compute_metrics(x, y, y_pred, sample_weight)

    strategy = tfdist.mirrored_strategy(devices[:2])
    model = built(strategy, lambda: linear(Counting))
    one, two = train(strategy, step_of(strategy, model))
    at = [id(v) for v in model.metrics_variables].index(id(model.number.total))
    assert added([one.metrics, two.metrics])[at : at + 2] == pytest.approx([1, 1])
    assert number(model.optimizer.iterations) == 0


def test_an_integer_that_a_slice_decides_is_refused(devices):
    class Counting(keras.layers.Layer):
        def build(self, shape):
            self.rows = self.add_weight(
                shape=(), dtype="int32", initializer="zeros", trainable=False, name="rows"
            )

        def call(self, x):
            self.rows.assign_add(keras.ops.shape(x)[0])
            return x

    strategy = tfdist.mirrored_strategy(devices[:2])
    model = built(strategy, lambda: linear(keras.Sequential, Counting()))
    with pytest.raises(ConfigError, match="rows is assigned an integer"):
        train(strategy, step_of(strategy, model))


def test_outputs_are_kept_for_metrics_that_are_gathered(devices):
    class Seeing(keras.Sequential):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return super().compute_metrics(x, y, y_pred, sample_weight)

    strategy = tfdist.one_device_strategy(devices[0])
    for kind, seen in ((keras.Sequential, None), (Seeing, X)):
        model = built(strategy, lambda kind=kind: linear(kind))
        (output,) = train(strategy, step_of(strategy, model, gathers_metrics=True))
        x, y, y_pred, sample_weight, masks = output.outputs
        np.testing.assert_array_equal(x, seen)
        np.testing.assert_array_equal(y, Y)
        close(y_pred, model(X).numpy())
        assert (sample_weight, masks) == (None, [None])
        grown = dict(zip(map(id, model.metrics_variables), output.metrics, strict=True))
        loss, (mae,) = model.metrics[0], model.metrics[1].metrics
        assert grown[id(loss.total)] > 0
        assert grown[id(mae.total)] == 0
