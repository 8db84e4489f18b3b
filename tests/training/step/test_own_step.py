"""A model's own `train_step` gives the numbers of one device, whatever its optimizers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.training.step.replicas import (
    Pair,
    X,
    Y,
    added,
    built,
    make_pair,
    number,
    plain,
    train,
    transport_of,
)
from tfdist.errors import ConfigError
from tfdist.training.model.inspection import ModelVariables, all_optimizers
from tfdist.training.step.own_step import MultiOptimizerStep, SingleOptimizerStep
from tfdist.training.step.slicing import by_batch, by_nominal


class Own(keras.Sequential):
    scales = False

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(x, training=True) - y) ** 2)
            scaled = self.optimizer.scale_loss(loss) if self.scales else loss
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, "rows": keras.ops.shape(x)[0], "each": x[:, 0]}


class Scaling(Own):
    scales = True


def model_of(kind, optimizer="sgd", first=None) -> keras.Model:
    layer = first or keras.layers.Dense(4, "tanh")
    model = kind([keras.Input((3,)), layer, keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def step_of(strategy, model: keras.Model) -> SingleOptimizerStep:
    return SingleOptimizerStep(model, ModelVariables.of(model), transport_of(strategy))


def of_whole_batch() -> tuple[list, float]:
    model = plain(lambda: model_of(Own))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(X) - Y) ** 2)
    return tape.gradient(loss, [v.value for v in model.trainable_variables]), float(loss)


@pytest.mark.parametrize("build", ["mirrored_strategy", "central_storage_strategy"])
def test_gradients_and_logs_add_up_to_those_of_the_batch(devices, build):
    strategy = getattr(tfdist, build)(devices[:2])
    model = built(strategy, lambda: model_of(Own))
    before = model.get_weights()
    outputs = train(strategy, step_of(strategy, model))
    gradients, loss = of_whole_batch()
    for value, expected in zip(added([o.gradients for o in outputs]), gradients, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    assert [sorted(output.logs) for output in outputs] == [["loss", "rows"]] * 2  # scalars only
    assert [float(output.logs["rows"]) for output in outputs] == [3, 4]
    one, two = (output.logs["loss"] for output in outputs)
    assert (3 * one + 4 * two) / 7 == pytest.approx(loss)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    assert number(model.optimizer.iterations) == 0
    assert "apply" not in vars(model.optimizer)


def test_losses_of_examples_are_summed_over_the_batch(devices):
    class ByExample(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                losses = (self(x)[:, 0] - y[:, 0]) ** 2
            gradients = tape.gradient(losses, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {}

    strategy = tfdist.mirrored_strategy(devices[:2])
    outputs = train(strategy, step_of(strategy, built(strategy, lambda: model_of(ByExample))))
    gradients = added([output.gradients for output in outputs])
    for value, expected in zip(gradients, of_whole_batch()[0], strict=True):
        np.testing.assert_allclose(value, 7 * expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [Own, Scaling])
def test_gradients_are_scaled_once_whether_or_not_the_step_scales_its_loss(devices, kind):
    def make() -> keras.Model:
        scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=8.0)
        return model_of(kind, scaling)

    strategy = tfdist.one_device_strategy(devices[0])
    (output,) = train(strategy, step_of(strategy, built(strategy, make)), loss_scale=8.0)
    for value, expected in zip(output.gradients, of_whole_batch()[0], strict=True):
        np.testing.assert_allclose(value, 8 * expected, rtol=1e-5, atol=1e-6)


class ByValue(Own):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, [v.value for v in self.trainable_variables])
        self.optimizer.apply(gradients, self.trainable_variables)
        return {}


@pytest.mark.parametrize("kind", [Own, ByValue])
def test_a_layer_that_assigns_weights_is_refused(devices, kind):
    def make() -> keras.Model:
        layer = keras.layers.SpectralNormalization(keras.layers.Dense(4))
        return model_of(kind, first=layer)

    strategy = tfdist.one_device_strategy(devices[0])
    model = built(strategy, make)
    with pytest.raises(ConfigError, match=rf"{kind.__name__}.train_step: assigns .*kernel"):
        train(strategy, step_of(strategy, model))


def test_a_step_that_never_calls_the_optimizer_is_refused(devices):
    class Idle(keras.Sequential):
        def train_step(self, data):
            return {"loss": 0.0}

    strategy = tfdist.one_device_strategy(devices[0])
    model = built(strategy, lambda: model_of(Idle))
    with pytest.raises(ConfigError, match=r"Idle.train_step: never calls"):
        train(strategy, step_of(strategy, model))


def pair_step_of(strategy, model: keras.Model, weights_add_up: bool = True) -> MultiOptimizerStep:
    return MultiOptimizerStep(
        model,
        ModelVariables.of(model),
        transport_of(strategy),
        weights_add_up=weights_add_up,
    )


@pytest.mark.parametrize("nominal", [None, 10])
def test_two_replicas_update_to_what_one_device_does(devices, nominal):
    strategy = tfdist.mirrored_strategy(devices[:2])
    model, alone = built(strategy, make_pair), plain(make_pair)
    step = pair_step_of(strategy, model, weights_add_up=nominal is None)
    weighing = by_batch if nominal is None else by_nominal(nominal)
    one, two = train(strategy, step, weighing=weighing)
    loss = alone.train_on_batch(X, Y, return_dict=True)["loss"]
    places = {
        id(v): other
        for mine, others in (
            (model.trainable_variables, alone.trainable_variables),
            (model.optimizer.variables, alone.optimizer.variables),
            (model.second.variables, alone.second.variables),
        )
        for v, other in zip(mine, others, strict=True)
    }
    updated = {id(v) for v in step.updated}
    assert {id(v) for v in model.trainable_variables} < updated
    assert {id(o.iterations) for o in all_optimizers(model)} < updated
    for variable, value, same in zip(step.updated, one.updated, two.updated, strict=True):
        np.testing.assert_array_equal(value, same)
        np.testing.assert_allclose(value, places[id(variable)], rtol=1e-5, atol=1e-6)
    at = [id(v) for v in model.metrics_variables].index(id(model.loss_tracker.total))
    total, count = added([one.metrics, two.metrics])[at : at + 2]
    assert total / count == pytest.approx(float(loss), rel=1e-5)
    assert (one.gradients, one.state, step.changed["train"]) == ([], [], [])
    assert [number(o.iterations) for o in all_optimizers(model)] == [0, 0]
    assert all("apply" not in vars(optimizer) for optimizer in all_optimizers(model))


def test_weights_updated_twice_and_steps_without_an_update_are_refused(devices):
    class Twice(Pair):
        def updates(self):
            return [(self.optimizer, self.head.trainable_variables)] * 2

    class Again(Pair):
        def train_step(self, data):
            zeros = [tf.zeros(v.shape) for v in self.tail.trainable_variables]
            for optimizer in (self.optimizer, self.second):
                optimizer.apply(zeros, self.tail.trainable_variables)
            return {}

    class Idle(Pair):
        def updates(self):
            return []

        def train_step(self, data):
            return {}

    strategy = tfdist.mirrored_strategy(devices[:2])
    for kind, named in ((Twice, "more than once a step"), (Idle, "never calls apply")):
        model = built(strategy, lambda kind=kind: make_pair(kind))
        with pytest.raises(ConfigError, match=f"{kind.__name__}.train_step: .*{named}"):
            train(strategy, pair_step_of(strategy, model))
    model = built(strategy, make_pair)
    model.__class__ = Again
    with pytest.raises(ConfigError, match=r"Again.train_step: updates the same weights"):
        train(strategy, pair_step_of(strategy, model))
