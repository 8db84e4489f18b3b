"""A step with several optimizers, in which later ones see what earlier ones updated."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.training.step.replicas import X, Y, added, built, number, plain, train, transport_of
from tfdist.errors import ConfigError
from tfdist.training.model.inspection import ModelVariables, all_optimizers
from tfdist.training.step.multi_optimizer import MultiOptimizerStep, build_optimizers
from tfdist.training.step.slicing import by_batch, by_nominal


class Pair(keras.Model):
    """As a GAN: the head is updated first, and the tail by a loss that goes through the head."""

    def __init__(self) -> None:
        super().__init__()
        self.tail = keras.layers.Dense(4, "tanh")
        self.head = keras.layers.Dense(1)
        self.second = keras.optimizers.Adam(0.1, weight_decay=0.01)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.build((None, 3))

    def build(self, shape):
        self.tail.build(shape)
        self.head.build((None, 4))
        self.built = True

    def call(self, x):
        return self.head(self.tail(x))

    def updates(self):
        head, tail = self.head.trainable_variables, self.tail.trainable_variables
        return [(self.optimizer, head), (self.second, tail)]

    def train_step(self, data):
        x, y = data[:2]
        for optimizer, variables in self.updates():
            with tf.GradientTape() as tape:
                loss = keras.ops.mean((self(x) - y) ** 2)
            optimizer.apply(tape.gradient(loss, variables), variables)
        self.loss_tracker.update_state(loss)
        return {"loss": loss}


def make(kind=Pair) -> keras.Model:
    model = kind()
    model.compile(keras.optimizers.SGD(0.5))
    return model


def step_of(strategy, model: keras.Model, weights_add_up: bool = True) -> MultiOptimizerStep:
    return MultiOptimizerStep(
        model,
        ModelVariables.of(model),
        transport_of(strategy),
        weights_add_up=weights_add_up,
    )


@pytest.mark.parametrize("nominal", [None, 10])
def test_two_replicas_update_to_what_one_device_does(devices, nominal):
    strategy = tfdist.mirrored_strategy(devices[:2])
    model, alone = built(strategy, make), plain(make)
    step = step_of(strategy, model, weights_add_up=nominal is None)
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
        model = built(strategy, lambda kind=kind: make(kind))
        with pytest.raises(ConfigError, match=f"{kind.__name__}.train_step: .*{named}"):
            train(strategy, step_of(strategy, model))
    model = built(strategy, make)
    model.__class__ = Again
    with pytest.raises(ConfigError, match=r"Again.train_step: updates the same weights"):
        train(strategy, step_of(strategy, model))


def test_optimizers_are_built_with_the_weights_the_step_hands_them(devices):
    strategy = tfdist.mirrored_strategy(devices[:2])
    with strategy.scope():
        model = make()
    before = model.get_weights()
    assert not model.second.built
    build_optimizers(model, strategy, (tf.constant(X[:1]), tf.constant(Y[:1])))
    shapes = [tuple(v.shape) for v in model.tail.trainable_variables]
    assert [tuple(v.shape) for v in model.second._momentums] == shapes
    assert all(strategy.extended.variable_created_in_scope(v.value) for v in model.second.variables)
    assert number(model.second.iterations) == 0
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
