"""What a step asks of its metrics and optimizer is intercepted, and only while it runs."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.training.step.replicas import dense, plain
from tfdist.errors import ConfigError
from tfdist.training.step.patches.capture import CapturedGradients, ScalarMeans
from tfdist.training.step.patches.row_sums import NO_SUMS


class OwnMean(keras.metrics.Mean):
    def update_state(self, values, sample_weight=None):
        super().update_state(2 * values, sample_weight)


class Tracking(keras.Sequential):
    def __init__(self):
        super().__init__([keras.Input((3,)), keras.layers.Dense(1)])
        self.tracker = keras.metrics.Mean(name="tracker")
        self.own = OwnMean(name="own")


def sums(metric: keras.metrics.Mean) -> list[float]:
    return [float(metric.total.value), float(metric.count.value)]


def compiled(optimizer: keras.optimizers.Optimizer) -> keras.Model:
    def make() -> keras.Model:
        model = dense()
        model.compile(optimizer, "mse")
        return model

    return plain(make)


def test_one_number_counts_for_the_slices_share_and_a_tensor_for_itself():
    model = Tracking()
    with ScalarMeans(model) as means:
        means.start(tf.constant(0.25), NO_SUMS, lambda: tf.constant(1.0))
        model.tracker.update_state(8.0)
        assert sums(model.tracker) == [2.0, 0.25]
        model.tracker.update_state([1.0, 2.0])
        assert sums(model.tracker) == [5.0, 2.25]
        model.tracker.update_state(1.0, sample_weight=3.0)
        assert sums(model.tracker) == [8.0, 5.25]
        model.own.update_state(1.0)
        assert sums(model.own) == [2.0, 1.0]  # A user's class knows what it counts.
    model.tracker.update_state(8.0)
    assert sums(model.tracker) == [16.0, 6.25]


def test_replicas_which_are_threads_keep_their_own_shares():
    model = Tracking()
    started = threading.Barrier(2)

    def replica(share: float) -> None:
        means.start(tf.constant(share), NO_SUMS, lambda: tf.constant(1.0))
        started.wait(10)
        trackers[share].update_state(1.0)

    trackers = {0.25: model.tracker, 0.75: keras.metrics.Mean()}
    model.other = trackers[0.75]
    with ScalarMeans(model) as means:
        threads = [threading.Thread(target=replica, args=(share,)) for share in trackers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [sums(metric)[1] for metric in trackers.values()] == [0.25, 0.75]


@pytest.mark.parametrize("call", ["apply", "apply_gradients"])
def test_gradients_are_kept_by_weight_and_nothing_is_updated(call):
    model = compiled(keras.optimizers.SGD(1.0))
    kernel, bias = model.trainable_variables
    before = model.get_weights()
    other = keras.Variable(0.0)
    with CapturedGradients(model) as captured:
        captured.start()
        if call == "apply":
            model.optimizer.apply([tf.constant([5.0]), tf.ones((3, 1))], [bias, kernel])
        else:
            model.optimizer.apply_gradients([(tf.constant([5.0]), bias), (tf.ones((3, 1)), kernel)])
        (of_kernel, of_other, of_bias), scale = captured.take([kernel, other, bias])
    np.testing.assert_array_equal(of_kernel, np.ones((3, 1)))
    assert (of_other, float(of_bias[0]), float(scale)) == (None, 5.0, 1.0)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    model.optimizer.apply([tf.ones((3, 1)), tf.constant([5.0])], [kernel, bias])
    np.testing.assert_allclose(bias, before[1] - 5)


def test_without_variables_the_gradients_are_those_of_the_trainable_ones_in_order():
    model = compiled(keras.optimizers.SGD(1.0))
    with CapturedGradients(model) as captured:
        captured.start()
        model.optimizer.apply([tf.ones((3, 1)), tf.constant([5.0])])
        (_, bias), _ = captured.take(model.trainable_variables)
    assert float(bias[0]) == 5.0


def test_what_a_scaled_loss_was_multiplied_by_is_told():
    inner = keras.optimizers.SGD(1.0)
    model = compiled(keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0))
    with CapturedGradients(model) as captured:
        for scales, expected in ((True, 8.0), (False, 1.0)):
            captured.start()
            if scales:
                assert float(model.optimizer.scale_loss(tf.constant(3.0))) == 24.0
            model.optimizer.apply([tf.ones((3, 1)), tf.constant([5.0])], model.trainable_variables)
            assert float(captured.take(model.trainable_variables)[1]) == expected
    assert not {"apply", "scale_loss"} & set(vars(model.optimizer))


def test_no_call_and_two_calls_are_refused():
    model = compiled(keras.optimizers.SGD(1.0))
    gradients = [tf.ones((3, 1)), tf.constant([5.0])]
    with CapturedGradients(model) as captured:
        captured.start()
        with pytest.raises(ConfigError, match=r"Sequential.train_step: never calls .*apply"):
            captured.take(model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        with pytest.raises(ConfigError, match=r"optimizer.apply more than once"):
            model.optimizer.apply(gradients, model.trainable_variables)
