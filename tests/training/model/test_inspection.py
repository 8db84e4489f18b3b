"""What a model consists of: variables, metrics, optimizers, overridden methods."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.training.model.inspection import (
    ModelVariables,
    all_optimizers,
    compiled_optimizer,
    flat_metrics,
    has_several_optimizers,
    inner_optimizer,
    is_seed,
    other_optimizers,
    overrides,
)


class Own(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


class Heir(Own):
    pass


def model_of(kind=keras.Sequential, *layers) -> keras.Model:
    return kind([keras.Input((3,)), *(layers or [keras.layers.Dense(1)])])


def test_variables_by_what_a_step_does_with_them():
    norm, dropout = keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)
    frozen, last = keras.layers.Dense(2, trainable=False), keras.layers.Dense(1)
    model = model_of(keras.Sequential, norm, dropout, frozen, last)
    model.compile("sgd", "mse", metrics=["mae"])
    model.train_on_batch(np.ones((2, 3)), np.ones((2, 1)))
    variables = ModelVariables.of(model)
    assert variables.trainable == [norm.gamma, norm.beta, last.kernel, last.bias]
    state = {id(v) for v in variables.state}
    expected = [norm.moving_mean, norm.moving_variance, frozen.kernel, frozen.bias]
    assert state == {id(v) for v in (*expected, dropout.seed_generator.state)}
    assert [tuple(v.shape) for v in variables.metrics] == [()] * 4  # totals and counts
    assert [v for v in variables.state if is_seed(v)] == [dropout.seed_generator.state]


def test_only_the_state_of_a_seed_generator_is_a_seed():
    assert is_seed(keras.random.SeedGenerator(1).state)
    assert not is_seed(keras.Variable([0, 1], name="state"))
    assert not is_seed(keras.Variable([0, 1, 2], name="seed_generator_state"))


def test_methods_of_the_models_own():
    assert not overrides(model_of(), "train_step")
    assert overrides(model_of(Own), "train_step")
    assert overrides(model_of(Heir), "train_step")
    assert not overrides(model_of(Own), "test_step")


def test_metrics_inside_compiled_ones_come_once_and_in_order():
    a = keras.Input((3,))
    outputs = {"p": keras.layers.Dense(1)(a), "q": keras.layers.Dense(1)(a)}
    model = keras.Model(a, outputs)
    auc = keras.metrics.AUC(name="auc")
    model.tracker, model.same = keras.metrics.Mean(name="own"), auc
    model.compile(
        "sgd",
        {"p": "mse", "q": "mae"},
        metrics={"p": ["mae"], "q": ["mse", auc]},
    )
    target = {"p": np.ones((2, 1)), "q": np.ones((2, 1))}
    model.test_on_batch(np.ones((2, 3)), target)
    found = list(flat_metrics(model))
    names = ["loss", "mae", "mse", "auc", "p_loss", "q_loss", "own"]
    assert [metric.name for metric in found] == names
    assert len({id(metric) for metric in found}) == 7
    variables = [id(v) for metric in found for v in metric.variables]
    assert set(variables) == {id(v) for v in model.metrics_variables}


def test_optimizers_and_which_of_them_updates_the_weights():
    model = model_of(Own)
    model.compile("sgd", "mse")
    assert (other_optimizers(model), has_several_optimizers(model)) == ([], False)
    assert all_optimizers(model) == [model.optimizer]
    model.again = model.optimizer
    assert not has_several_optimizers(model)
    model.second = keras.optimizers.Adam()
    assert other_optimizers(model) == [model.second]
    assert all_optimizers(model) == [model.optimizer, model.second]
    assert has_several_optimizers(model)
    plain = model_of()
    plain.compile("sgd", "mse")
    plain.second = keras.optimizers.Adam()
    assert not has_several_optimizers(plain)  # Keras' own step calls the compiled one alone.
    scaling = keras.optimizers.LossScaleOptimizer(model.second)
    assert inner_optimizer(scaling) is inner_optimizer(model.second) is model.second


def test_a_model_that_is_not_compiled_has_no_optimizer():
    model = model_of(Own)
    assert compiled_optimizer(model) is None
    assert all_optimizers(model) == other_optimizers(model) == []
    assert not has_several_optimizers(model)


def test_the_strategy_does_not_matter(devices):
    with tfdist.mirrored_strategy(devices[:2]).scope():
        model = model_of(keras.Sequential, keras.layers.Dropout(0.5), keras.layers.Dense(1))
    variables = ModelVariables.of(model)
    assert len(variables.trainable) == 2
    assert [is_seed(v) for v in variables.state] == [True]
    assert not tf.distribute.has_strategy()
