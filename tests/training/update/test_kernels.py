"""A kernel in place of an optimizer's operations: TensorFlow's gives Keras' bits, XLA's nearly."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.selected import some
from tfdist.errors import ConfigError
from tfdist.training.update import kernels
from tfdist.training.update.apply import OptimizerUpdate
from tfdist.training.update.kernels import AUTO, LEAST_WEIGHTS, fused, is_compiled

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


optimizers = keras.optimizers
MAKE = {
    "adam": lambda: optimizers.Adam(0.01, amsgrad=True, clipnorm=0.5),
    "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5),
    "adamax": lambda: optimizers.Adamax(0.01),
    "nadam": lambda: optimizers.Nadam(0.01),
    "rmsprop": lambda: optimizers.RMSprop(0.01, centered=True, momentum=0.5),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adadelta": lambda: optimizers.Adadelta(1.0),
    "ftrl": lambda: optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
    "lion": lambda: optimizers.Lion(0.01),
    "lamb": lambda: optimizers.Lamb(0.01),
    "adafactor": lambda: optimizers.Adafactor(0.01),
    "schedule": lambda: optimizers.Adam(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "ema": lambda: optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2),
}


def after_steps(make, compiles):
    random = np.random.default_rng(1)
    weights = [keras.Variable(random.normal(size=shape), dtype="float32") for shape in SHAPES]
    optimizer = make()
    optimizer.build(weights)
    update = OptimizerUpdate(optimizer, weights, tf.distribute.get_strategy(), compiles=compiles)
    function = tf.function(update, autograph=False)
    for number in range(4):
        function(gradients(number))
    called = function.get_concrete_function(gradients(0)).graph
    return [np.asarray(v) for v in (*weights, *optimizer.variables)], by_xla(called)


def by_xla(graph):
    """Whether a graph calls a function that XLA compiles."""
    functions = graph.as_graph_def().library.function
    return any(function.attr["_XlaMustCompile"].b for function in functions)


@pytest.mark.parametrize(
    "name", some([(name,) for name in MAKE], [(name,) for name in list(MAKE)[::4]])
)
def test_what_xla_compiles_is_keras_update_but_for_rounding(name):
    plain, not_by_xla = after_steps(MAKE[name], False)
    found, was_by_xla = after_steps(MAKE[name], True)
    assert was_by_xla and not not_by_xla
    for own, expected in zip(found, plain, strict=True):
        # Four updates: a few roundings of float32, relative to the largest number.
        np.testing.assert_allclose(own, expected, rtol=2e-5, atol=2e-6)


def test_a_kernel_comes_first():
    """Where there is one, as for SGD, XLA is not asked."""
    plain, _ = after_steps(lambda: optimizers.SGD(0.1, momentum=0.9), False)
    found, was_by_xla = after_steps(lambda: optimizers.SGD(0.1, momentum=0.9), True)
    assert not was_by_xla
    for own, expected in zip(found, plain, strict=True):
        np.testing.assert_array_equal(own, expected)


def test_compile_update_auto_looks_at_the_size_within_a_graph(monkeypatch):
    monkeypatch.setattr("tfdist.training.update.kernels.LEAST_WEIGHTS", 3000)
    assert after_steps(MAKE["adam"], AUTO)[1]
    monkeypatch.setattr("tfdist.training.update.kernels.LEAST_WEIGHTS", 4000)
    assert not after_steps(MAKE["adam"], AUTO)[1]


def test_small_models_are_not_worth_compiling():
    few = [keras.Variable(np.zeros(100, "float32"))]
    many = [keras.Variable(np.zeros(LEAST_WEIGHTS, "float32"))]
    adam = optimizers.Adam()
    assert not is_compiled(adam, few, [], AUTO) and is_compiled(adam, many, [], AUTO)
    assert is_compiled(adam, few, [], True) and not is_compiled(adam, many, [], False)


def test_what_xla_cannot_do_is_left_to_keras():
    class Own(optimizers.Adam):
        pass

    weights = [keras.Variable(np.zeros((4, 2), "float32"))]
    rows = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([2]), tf.constant([4, 2]))
    assert not is_compiled(Own(), weights, [], True)
    assert not is_compiled(optimizers.Adam(), weights, [rows], True)
    # It has a kernel, which gives Keras' bits.
    assert not is_compiled(optimizers.SGD(), weights, [], True)


def trained(make=lambda: optimizers.AdamW(0.01), **options):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(make(), "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    history = tfdist.Trainer(model, **options).fit(x, x[:, :1], epochs=3, verbose=0, shuffle=False)
    return model.get_weights(), history.history["loss"]


def test_one_device_has_keras_bits_unless_asked(monkeypatch):
    asked = []
    real = kernels.compiled
    monkeypatch.setattr(kernels, "compiled", lambda f: (asked.append(f), real(f))[1])
    exact, losses = trained()
    assert not asked
    trained(lambda: optimizers.SGD(0.1), compile_update=True)
    assert not asked  # It has a kernel.
    close, other = trained(compile_update=True)
    assert asked
    np.testing.assert_allclose(other, losses, rtol=1e-6)
    for own, expected in zip(close, exact, strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)


def test_compile_update_is_refused_with_replicas_of_one_process(devices):
    with tfdist.mirrored_strategy(devices[:2]).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    with pytest.raises(ConfigError, match=r"compile_update\): True is given; allowed: .* replica"):
        tfdist.Trainer(model, compile_update=True)
    with pytest.raises(ConfigError, match="compile_update.*'yes'.*True, False, auto"):
        tfdist.Trainer(model, compile_update="yes")
