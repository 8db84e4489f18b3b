"""The loss scale doubles and halves where that of Keras' LossScaleOptimizer does."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.training.update.loss_scale import LossScaler

GOOD, BAD = 1.0, np.inf


def scaling(growth: int = 2) -> keras.optimizers.LossScaleOptimizer:
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=8.0, dynamic_growth_steps=growth
    )


def state(optimizer) -> list[float]:
    return [float(v.numpy()) for v in (optimizer.dynamic_scale, optimizer.step_counter)]


@pytest.mark.parametrize("growth", [1, 2, 3])
def test_scale_and_counter_go_as_those_of_keras(devices, growth):
    strategy = tfdist.mirrored_strategy(devices[:2])
    with strategy.scope():
        optimizer = scaling(growth)
        optimizer.build([keras.Variable([0.0])])
    alone, weight = scaling(growth), keras.Variable([0.0])
    alone.build([weight])
    scaler = LossScaler(optimizer)
    seen = set()
    for value in (GOOD, GOOD, GOOD, BAD, GOOD, BAD, BAD, GOOD, GOOD, GOOD, GOOD):
        gradient = tf.constant([value])
        scaler.update(scaler.all_finite([gradient]))
        alone.apply([gradient], [weight])
        assert state(optimizer) == state(alone)
        seen.add(state(optimizer)[0])
    assert len(seen) > 2  # It did double and halve.


def test_loss_and_gradients_are_multiplied_and_divided_by_the_dynamic_scale():
    optimizer = scaling()
    optimizer.build([keras.Variable([0.0])])
    scaler = LossScaler(optimizer)
    assert scaler.optimizer is optimizer.inner_optimizer
    assert scaler.dynamic
    assert float(scaler.value()) == 8.0
    optimizer.dynamic_scale.assign(16.0)
    assert float(scaler.value()) == 16.0
    sparse = tf.IndexedSlices(tf.constant([32.0]), tf.constant([3]))
    dense, none, slices = scaler.unscale([tf.constant([4.0]), None, sparse])
    assert float(dense[0]) == 0.25
    assert none is None
    assert float(slices.values[0]) == 2.0


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_value_that_is_not_finite_is_found_in_any_kind_of_gradient(bad):
    scaler = LossScaler(scaling())
    good = tf.constant([1.0, 2.0])
    assert bool(scaler.all_finite([good, None]))
    assert not bool(scaler.all_finite([good, None, tf.constant([1.0, bad])]))
    sparse = tf.IndexedSlices(tf.constant([bad]), tf.constant([0]))
    assert not bool(scaler.all_finite([sparse, good]))


def test_a_fixed_scale_is_taken_out_by_the_optimizer_itself():
    scaler = LossScaler(keras.optimizers.SGD(loss_scale_factor=4.0))
    assert not scaler.dynamic
    assert float(scaler.value()) == 4.0
    gradient = tf.constant([np.inf])
    assert scaler.unscale([gradient])[0] is gradient
    assert bool(scaler.all_finite([gradient]))


def test_without_scaling_the_loss_stays():
    assert LossScaler(keras.optimizers.SGD()).value() is None
