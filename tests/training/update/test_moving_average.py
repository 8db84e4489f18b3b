"""Averages overwrite the weights after every so many updates, on every replica."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.training.update.moving_average import MovingAverage


def averaging(frequency: int | None, use_ema: bool = True) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(
        0.1, momentum=0.9, use_ema=use_ema, ema_overwrite_frequency=frequency
    )


def made(strategy, optimizer_of) -> tuple:
    """Weights of 1, and an optimizer whose averages of them are 10 and 20."""
    with strategy.scope():
        trainable = [keras.Variable([1.0]), keras.Variable([1.0, 1.0])]
        optimizer = optimizer_of()
        optimizer.build(trainable)
    if optimizer.use_ema:
        for average, value in zip(optimizer._model_variables_moving_average, (10, 20), strict=True):
            average.assign(tf.fill(average.shape, float(value)))
    return trainable, optimizer, MovingAverage(optimizer, trainable)


def values(trainable) -> list[list[float]]:
    return [variable.numpy().tolist() for variable in trainable]


@pytest.mark.parametrize("build", ["mirrored_strategy", "central_storage_strategy"])
def test_weights_are_overwritten_after_every_third_update_only(devices, build):
    strategy = getattr(tfdist, build)(devices[:2])
    trainable, _, average = made(strategy, lambda: averaging(3))
    update = tf.function(average.update, autograph=False)
    for steps, due in ((1, False), (2, False), (3, True), (4, False), (6, True)):
        for variable in trainable:
            variable.assign(tf.ones(variable.shape))
        update(tf.constant(steps))
        assert values(trainable) == ([[10.0], [20.0, 20.0]] if due else [[1.0], [1.0, 1.0]])
        for variable in trainable:
            one, *others = strategy.experimental_local_results(variable.value)
            assert all(np.array_equal(one, other) for other in others)


@pytest.mark.parametrize(("frequency", "use_ema"), [(None, True), (1, False)])
def test_weights_are_left_alone_where_that_is_not_asked_for(devices, frequency, use_ema):
    strategy = tfdist.mirrored_strategy(devices[:2])

    def make() -> keras.optimizers.Optimizer:
        optimizer = averaging(frequency if use_ema else None, use_ema)
        optimizer.ema_overwrite_frequency = frequency
        return optimizer

    trainable, _, average = made(strategy, make)
    average.update(tf.constant(1))
    assert values(trainable) == [[1.0], [1.0, 1.0]]


def test_held_back_the_optimizer_keeps_averages_and_does_not_overwrite(devices):
    strategy = tfdist.one_device_strategy(devices[0])
    trainable, optimizer, average = made(strategy, lambda: averaging(1))
    gradients = [tf.ones(v.shape) for v in trainable]
    with average.held_back():
        assert optimizer.ema_overwrite_frequency is None
        strategy.run(lambda: optimizer.apply(gradients, trainable))
    assert optimizer.ema_overwrite_frequency == 1
    assert values(trainable)[0] == pytest.approx([0.9])
    average.update(optimizer.iterations.value)
    # The first update starts the averages from the weights.
    assert values(trainable)[0] == pytest.approx([0.9])
    with average.held_back():
        strategy.run(lambda: optimizer.apply(gradients, trainable))
    assert values(trainable)[0] == pytest.approx([0.9 - 0.19])
    average.update(optimizer.iterations.value)
    assert values(trainable)[0] == pytest.approx([0.99 * 0.9 + 0.01 * (0.9 - 0.19)])
