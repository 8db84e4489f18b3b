"""A kernel in the place of an optimizer's operations: the same bits, and it does run."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.training.update.apply import OptimizerUpdate
from tfdist.training.update.kernels import fused

SHAPES = [(3, 3, 5, 7), (100, 33), (13,)]
KERNELS = {"ResourceApplyKerasMomentum", "ResourceApplyGradientDescent"}
SGD = keras.optimizers.SGD
OPTIMIZERS = {
    "plain": lambda: SGD(0.1),
    "momentum": lambda: SGD(0.1, momentum=0.9),
    "nesterov": lambda: SGD(0.1, momentum=0.9, nesterov=True, clipnorm=0.5),
    "schedule": lambda: SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "decay": lambda: SGD(0.1, momentum=0.5, weight_decay=0.1, use_ema=True, ema_momentum=0.9),
}


def variables(dtype="float32"):
    random = np.random.default_rng(1)
    return [keras.Variable(random.normal(size=shape), dtype=dtype) for shape in SHAPES]


def gradients(number, dtype="float32"):
    random = np.random.default_rng(number)
    return [tf.constant(random.normal(size=shape), dtype) for shape in SHAPES]


def operations(function):
    graph = function.get_concrete_function(gradients(0)).graph
    return {op.type for op in graph.get_operations()}


def updated(optimizer, weights, update, dtype="float32", steps=4):
    for number in range(steps):
        update(gradients(number, dtype))
    return [np.asarray(v) for v in (*weights, *optimizer.variables)]


def by_keras(make, dtype="float32"):
    weights, optimizer = variables(dtype), make()
    optimizer.build(weights)
    return updated(optimizer, weights, tf.function(lambda g: optimizer.apply(g, weights)), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_its_bits_are_those_of_keras(name, dtype):
    weights, optimizer = variables(dtype), OPTIMIZERS[name]()
    optimizer.build(weights)

    def update(given):
        with fused(optimizer):
            optimizer.apply(given, weights)

    function = tf.function(update)
    found = updated(optimizer, weights, function, dtype)
    if dtype == "float32":
        assert operations(function) & KERNELS
    for own, expected in zip(found, by_keras(OPTIMIZERS[name], dtype), strict=True):
        np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize("name", ["plain", "momentum", "nesterov", "schedule"])
@pytest.mark.parametrize("build", ["mirrored_strategy", "central_storage_strategy"])
def test_under_a_strategy_too(devices, build, name):
    strategy = getattr(tfdist, build)(devices[:2])
    with strategy.scope():
        weights, optimizer = variables(), OPTIMIZERS[name]()
        optimizer.build(weights)
    function = tf.function(OptimizerUpdate(optimizer, weights, strategy), autograph=False)
    found = updated(optimizer, weights, function)
    assert operations(function) & KERNELS
    for own, expected in zip(found, by_keras(OPTIMIZERS[name]), strict=True):
        np.testing.assert_array_equal(own, expected)


def test_half_precision_is_left_to_keras():
    weights, optimizer = variables("float16"), SGD(0.1, momentum=0.9)
    optimizer.build(weights)

    def update(given):
        with fused(optimizer):
            optimizer.apply([tf.cast(g, "float16") for g in given], weights)

    assert not operations(tf.function(update)) & KERNELS


def test_sparse_gradients_are_left_to_keras():
    weight, optimizer = keras.Variable(np.ones((4, 2), "float32")), SGD(0.1)
    optimizer.build([weight])
    rows = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([2]), tf.constant([4, 2]))
    with fused(optimizer):
        optimizer.apply([rows], [weight])
    np.testing.assert_allclose(weight.numpy()[:, 0], [1, 1, 0.9, 1])


def test_updates_of_the_users_own_are_called():
    class Own(SGD):
        calls = 0

        def update_step(self, gradient, variable, learning_rate):
            self.calls += 1

    weights, optimizer = variables(), Own(0.1)
    optimizer.build(weights)
    with fused(optimizer):
        optimizer.apply(gradients(0), weights)
    assert optimizer.calls == len(weights)
    others = SGD(0.1)
    with fused(others):
        assert "update_step" in vars(others)
    assert "update_step" not in vars(others)
