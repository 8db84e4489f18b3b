"""Replaces the small operations of an optimizer's update by one compiled kernel.

Keras' SGD makes five operations a weight, each of which reads and writes memory as large as the
weight. TensorFlow has kernels that make the same additions and multiplications in one pass; in
float32 and float64 they give the same bits for the same gradients, which tests compare. Within a
whole step they need not: TensorFlow's graph optimizer may fold a factor of Keras' operations into
the gradient's. So one device, where the bits are to be those of Keras, is left without kernels.
Adam's kernel is not used: it takes 1 - beta_2 of float32 numbers, 5e-5 off Keras' value of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

_TYPES = ("float32", "float64")


def has_kernel(optimizer: Any) -> bool:
    """Returns whether there is a kernel for an optimizer."""
    # A subclass may have an update of its own, or expect to be called. Mixed precision is left to
    # Keras: its gradients have few digits, and another order of operations could show.
    mixed = keras.config.dtype_policy().compute_dtype != keras.config.floatx()
    own = type(optimizer) is not keras.optimizers.SGD or "update_step" in vars(optimizer)
    return not mixed and not own


@contextlib.contextmanager
def fused(optimizer: Any) -> Iterator[None]:
    """A context in which an optimizer updates each weight by one kernel, where there is one.

    Args:
        optimizer: The optimizer that updates the weights; others than Keras' own SGD are left
            as they are.
    """
    if not has_kernel(optimizer):
        yield
        return
    plain = optimizer.update_step

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        dense = isinstance(gradient, tf.Tensor) and hasattr(variable, "handle")
        if not dense or keras.backend.standardize_dtype(variable.dtype) not in _TYPES:
            plain(gradient, variable, learning_rate)
            return
        rate = tf.cast(learning_rate, variable.dtype)
        gradient = tf.cast(gradient, variable.dtype)
        if optimizer.momentum == 0:
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
            return
        velocity = optimizer.momentums[optimizer._get_variable_index(variable)]
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=velocity.value.handle,
            lr=rate,
            grad=gradient,
            momentum=tf.cast(optimizer.momentum, variable.dtype),
            use_nesterov=optimizer.nesterov,
        )

    optimizer.update_step = update_step
    try:
        yield
    finally:
        del optimizer.update_step
