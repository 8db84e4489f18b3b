"""A step leaves every variable as it was, and its scope tells what they are to become."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.training.step.replicas import on_each
from tfdist.collectives.replica_context import real_context
from tfdist.training.model.inspection import ModelVariables
from tfdist.training.step.stateless_scope import StepScope

ONE, NONE = 1, 0


def scope_of(weights=(), state=(), metrics=(), **options):
    variables = ModelVariables(list(weights), list(state), list(metrics))
    return StepScope(variables, real_context(), **options)


def test_replicas_draw_different_numbers_and_leave_the_same_seed(devices):
    strategy = tfdist.mirrored_strategy(devices[:2])
    with strategy.scope():
        seeds = keras.random.SeedGenerator(3)

    def draw():
        with scope_of(state=[seeds.state]) as scope:
            numbers = keras.random.uniform((5,), seed=seeds)
        changed, (state,) = scope.changed_state(tf.constant(ONE))
        assert changed == [seeds.state]
        return numbers, state

    (first, state), (second, same) = on_each(strategy, draw)
    alone = keras.random.SeedGenerator(3)
    np.testing.assert_array_equal(first, keras.random.uniform((5,), seed=alone))
    assert not np.isclose(first, second).any()
    np.testing.assert_array_equal(state, alone.state)
    np.testing.assert_array_equal(state, same)
    np.testing.assert_array_equal(seeds.state, keras.random.SeedGenerator(3).state)


@pytest.mark.parametrize(("count", "mean"), [(ONE, 5.0), (NONE, 2.0)])
def test_statistics_of_a_row_that_stands_in_for_none_count_for_nothing(count, mean):
    statistic, calls, idle = (
        keras.Variable(2.0),
        keras.Variable(4, dtype="int32"),
        keras.Variable(0),
    )
    with scope_of(state=[statistic, calls, idle]) as scope:
        statistic.assign(5.0)
        calls.assign_add(1)
    variables, values = scope.changed_state(tf.constant(count))
    assert variables == [statistic, calls]  # What was not assigned is not returned.
    assert [float(value) for value in values] == [mean, 5]
    assert (float(statistic.value), int(calls.value)) == (2.0, 4)


def test_metrics_start_from_zero_or_from_totals():
    total, other = keras.Variable(7.0), keras.Variable(7.0)
    for totals, grown in ((None, [2.0, 0.0]), ([tf.constant(10.0), tf.constant(1.0)], [12.0, 1.0])):
        with scope_of(metrics=[total, other], totals=totals) as scope:
            total.assign_add(2.0)
        values, touched = scope.metric_values(tf.constant(ONE))
        assert [float(value) for value in values] == grown
        assert touched == {id(total)}
        values, _ = scope.metric_values(tf.constant(NONE))
        assert float(values[0]) == grown[0] - 2
    assert float(total.value) == 7.0


def test_no_gradient_flows_through_an_assignment_and_what_was_assigned_is_watched():
    weight = keras.Variable(2.0)
    value = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(value)
        with scope_of([weight], trainable=[value], tape=tape) as scope:
            before = 3 * weight
            weight.assign(10 * weight)
            loss = before + weight * weight
    (replaced,) = scope.replaced
    assert replaced[0] is weight
    assert [float(g) for g in tape.gradient(loss, [value, replaced[1]])] == [3.0, 40.0]
    assert scope.changed_state(tf.constant(ONE))[0] == [weight]
    assert float(weight.value) == 2.0


def test_a_value_accounted_for_is_no_change_of_the_models_own():
    weight = keras.Variable(2.0)
    scope = scope_of([weight])
    with scope:
        weight.assign(3.0)
    scope.account_for(weight, scope.get_current_value(weight))
    assert scope.changed_state(tf.constant(ONE)) == ([], [])


def test_a_variable_may_be_assigned_from_another():
    weight, state, other = keras.Variable(1.0), keras.Variable(2.0), keras.Variable(5.0)
    with scope_of([weight], [state]) as scope:
        weight.assign(other)
        state.assign(weight)
    variables, values = scope.changed_state(tf.constant(ONE))
    assert variables == [state, weight]
    assert [float(value) for value in values] == [5.0, 5.0]
    assert all(isinstance(value, tf.Tensor) for value in values)


def test_losses_that_layers_add_are_collected():
    layer = keras.layers.ActivityRegularization(l2=1.0)
    with scope_of() as scope:
        layer(tf.ones((2, 3)))
    assert len(scope.losses) == 1
