"""An update that XLA compiles is Keras' but for rounding, and is left alone where XLA cannot."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.errors import ConfigError
from tfdist.training.update.apply import OptimizerUpdate
from tfdist.training.update.compiled import AUTO, LEAST_WEIGHTS, is_compiled

SHAPES = [(3, 3, 5, 7), (100, 33), (13,)]
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


def gradients(number):
    random = np.random.default_rng(number)
    return [tf.constant(random.normal(size=shape), "float32") for shape in SHAPES]


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


@pytest.mark.parametrize("name", MAKE)
def test_it_is_keras_update_but_for_rounding(name):
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


def test_auto_looks_at_the_size_within_a_graph(monkeypatch):
    monkeypatch.setattr("tfdist.training.update.compiled.LEAST_WEIGHTS", 3000)
    assert after_steps(MAKE["adam"], AUTO)[1]
    monkeypatch.setattr("tfdist.training.update.compiled.LEAST_WEIGHTS", 4000)
    assert not after_steps(MAKE["adam"], AUTO)[1]


def test_small_models_are_not_worth_it():
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
    from tfdist.training.update import compiled

    real = compiled.compiled
    monkeypatch.setattr(compiled, "compiled", lambda f: (asked.append(f), real(f))[1])
    exact, losses = trained()
    assert not asked
    trained(lambda: optimizers.SGD(0.1), compile_update=True)
    assert not asked  # It has a kernel.
    close, other = trained(compile_update=True)
    assert asked
    np.testing.assert_allclose(other, losses, rtol=1e-6)
    for own, expected in zip(close, exact, strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)


def test_replicas_of_one_process_are_refused(devices):
    with tfdist.mirrored_strategy(devices[:2]).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    with pytest.raises(ConfigError, match=r"compile_update\): True is given; allowed: .* replica"):
        tfdist.Trainer(model, compile_update=True)
    with pytest.raises(ConfigError, match="compile_update.*'yes'.*True, False, auto"):
        tfdist.Trainer(model, compile_update="yes")
