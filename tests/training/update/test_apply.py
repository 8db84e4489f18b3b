"""Weights after updates under a strategy are those that the optimizer gives on one device."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.training.step.reduction import Reduced
from tfdist.training.update.apply import OptimizerUpdate, PlainUpdate, UpdateWithinStep

START = ([[1.0, -2.0], [3.0, 4.0]], [0.5, -0.5])


def gradients(count: int) -> list[list[np.ndarray]]:
    random = np.random.default_rng(2)
    sizes = [np.shape(value) for value in START]
    return [[random.normal(size=s).astype("float32") for s in sizes] for _ in range(count)]


def weights(constraint: str | None = None) -> list[keras.Variable]:
    found = [keras.Variable(value, dtype="float32") for value in START]
    found[0].constraint = keras.constraints.get(constraint)
    return found


def updater(strategy, make: Callable, constraint: str | None = None):
    """Weights and optimizer under a strategy, their update, and it as a function of the graph."""
    with strategy.scope():
        trainable = weights(constraint)
        optimizer = make()
        optimizer.build(trainable)
    optimize = OptimizerUpdate(optimizer, trainable, strategy)
    return trainable, optimizer, optimize, tf.function(optimize, autograph=False)


def same(variables, others) -> None:
    for variable, other in zip(variables, others, strict=True):
        np.testing.assert_allclose(variable.numpy(), other.numpy(), rtol=1e-6, atol=1e-7)


OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipvalue=0.5),
    "adamw": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1, global_clipnorm=0.5),
    "averages": lambda: keras.optimizers.SGD(
        0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "fixed scale": lambda: keras.optimizers.RMSprop(0.1, loss_scale_factor=4.0),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=8.0
    ),
}


@pytest.mark.parametrize("build", ["mirrored_strategy", "central_storage_strategy"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_three_updates_are_those_of_one_device(devices, build, name):
    strategy = getattr(tfdist, build)(devices[:2])
    trainable, optimizer, optimize, update = updater(strategy, OPTIMIZERS[name], "non_neg")
    alone, plain = weights("non_neg"), OPTIMIZERS[name]()
    plain.build(alone)
    for step, given in enumerate(gradients(3), start=1):
        assert bool(update([tf.constant(g) for g in given]))
        plain.apply([tf.constant(g) for g in given], alone)
        same(trainable, alone)
        assert float(optimize.iterations.numpy()) == step
    same(optimizer.variables, plain.variables)
    for variable in trainable:  # Every replica has the same.
        one, *others = strategy.experimental_local_results(variable.value)
        assert all(np.array_equal(one, other) for other in others)


def test_sparse_and_missing_gradients(devices):
    strategy = tfdist.mirrored_strategy(devices[:2])
    trainable, _, _, update = updater(strategy, OPTIMIZERS["momentum"])
    sparse = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([1]), tf.constant([2, 2]))
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        update([sparse, None])
    np.testing.assert_allclose(trainable[0].numpy(), [[1, -2], [2.95, 3.95]], rtol=1e-6)
    np.testing.assert_allclose(trainable[1].numpy(), START[1])


def test_the_number_of_an_update_can_be_given_and_leaves_the_counter_alone(devices):
    strategy = tfdist.one_device_strategy(devices[0])

    def adam() -> keras.optimizers.Optimizer:
        return keras.optimizers.Adam(
            keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5),
            use_ema=True,
            ema_overwrite_frequency=5,
        )

    trainable, optimizer, _, update = updater(strategy, adam)
    alone, plain = weights(), adam()
    plain.build(alone)
    plain.iterations.assign(4)
    (given,) = gradients(1)
    update([tf.constant(g) for g in given], tf.constant(4, tf.int64))
    plain.apply([tf.constant(g) for g in given], alone)
    same(trainable, alone)
    assert int(optimizer.iterations.numpy()) == 0
    assert int(plain.iterations.numpy()) == 5


def test_an_overflow_leaves_all_as_it_was_but_the_scale(devices):
    strategy = tfdist.mirrored_strategy(devices[:2])
    trainable, optimizer, optimize, update = updater(strategy, OPTIMIZERS["scaled"])
    overflowed = [tf.constant(g) for g in gradients(1)[0]]
    overflowed[1] = tf.constant([1.0, np.inf])
    assert not bool(update(overflowed))
    same(trainable, weights())
    assert float(optimize.iterations.numpy()) == 0
    assert float(optimizer.dynamic_scale.numpy()) == 4.0


def test_a_plain_update_takes_nothing_back_and_applies_every_batch(devices):
    strategy = tfdist.mirrored_strategy(devices[:2])
    trainable, _, optimize, _ = updater(strategy, OPTIMIZERS["scaled"])
    update = PlainUpdate(optimize)
    assert float(update.loss_scale()) == 8.0
    given = [tf.ones((2, 2)), None]
    assert update.take(given, None) is given
    assert (update.calls_to_end(5), update.is_complete(), update.finish()) == (5, True, None)
    reduced = Reduced([tf.fill((2, 2), 8.0), tf.zeros(2)], [], [], {}, tf.constant(1.0), [])
    tf.function(lambda: update.apply(reduced), autograph=False)()
    np.testing.assert_allclose(trainable[0].numpy(), np.array(START[0]) - 0.1, rtol=1e-6)


def test_what_a_steps_own_optimizers_computed_is_assigned(devices):
    class Step:
        updated: list[keras.Variable] = []

    strategy = tfdist.mirrored_strategy(devices[:2])
    with strategy.scope():
        Step.updated = weights()
    update = UpdateWithinStep(Step(), strategy)
    assert update.loss_scale() is None
    values = [tf.fill((2, 2), 7.0), tf.fill((2,), 8.0)]
    update.apply(Reduced([], [], [], {}, tf.constant(1.0), values))
    for variable, value in zip(Step.updated, values, strict=True):
        for own in strategy.experimental_local_results(variable.value):
            np.testing.assert_array_equal(own, value)
