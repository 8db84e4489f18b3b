"""Scales the loss under tf.distribute, with one decision for all replicas."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist.training.model.inspection import inner_optimizer
from tfdist.training.step.gradients import divide


class LossScaler:
    """Applies Keras' LossScaleOptimizer with one decision for all replicas."""

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._outer = optimizer
        self.optimizer = inner_optimizer(optimizer)
        self.dynamic = self.optimizer is not optimizer

    def value(self) -> tf.Tensor | None:
        """Returns the factor of the loss, None if it is not scaled."""
        if self.dynamic:
            return tf.convert_to_tensor(self._outer.dynamic_scale.value)
        factor = getattr(self.optimizer, "loss_scale_factor", None)
        return None if factor is None else tf.constant(factor, tf.float32)

    def unscale(self, gradients: list[Any]) -> list[Any]:
        """Divides by the dynamic scale; the optimizer divides by a fixed one itself."""
        if not self.dynamic:
            return list(gradients)
        scale = tf.convert_to_tensor(self._outer.dynamic_scale.value)
        return [divide(gradient, scale) for gradient in gradients]

    def all_finite(self, gradients: list[Any]) -> tf.Tensor:
        """Returns whether all gradients are finite; True where the scale is not dynamic."""
        if not self.dynamic:
            return tf.constant(True)
        values = [getattr(g, "values", g) for g in gradients if g is not None]
        return tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])

    def update(self, finite: tf.Tensor) -> None:
        """Doubles the scale after enough good steps, halves it after an overflow."""
        steps, scale = self._outer.step_counter.value, self._outer.dynamic_scale.value
        count, factor = tf.convert_to_tensor(steps), tf.convert_to_tensor(scale)
        full = tf.equal(count, self._outer.dynamic_growth_steps - 1)
        grown = tf.where(full, factor * 2.0, factor)
        scale.assign(tf.where(finite, grown, factor * 0.5))
        steps.assign(tf.where(finite & ~full, count + 1, tf.zeros_like(count)))
