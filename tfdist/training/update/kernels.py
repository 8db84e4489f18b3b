"""Replaces the small operations of an optimizer's update by one kernel, TensorFlow's or XLA's.

Keras' SGD makes five operations a weight, each of which reads and writes memory as large as the
weight. TensorFlow has kernels that make the same additions and multiplications in one pass; in
float32 and float64 they give the same bits for the same gradients, which tests compare. Within a
whole step they need not: TensorFlow's graph optimizer may fold a factor of Keras' operations into
the gradient's. So one device, where the bits are to be those of Keras, is left without kernels.
Adam's kernel is not used: it takes 1 - beta_2 of float32 numbers, 5e-5 off Keras' value of it.

Other optimizers of Keras' make a dozen operations a weight; compiled by XLA, one pass does them
all. XLA contracts a multiplication and an addition into one operation with one rounding, so the
last bit of a number may differ from Keras'.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_internals import is_of_keras, place_of, trained_by

AUTO = "auto"
# Compiling takes seconds, which an update of fewer weights does not bring in again soon.
LEAST_WEIGHTS = 1_000_000
_TYPES = ("float32", "float64")


def has_kernel(optimizer: Any) -> bool:
    """Returns whether there is a kernel for an optimizer."""
    # A subclass may have its own update, or expect to be called. Mixed precision is left to
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
        velocity = optimizer.momentums[place_of(optimizer, variable)]
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


def is_compiled(
    optimizer: Any, trainable: Sequence[keras.Variable], gradients: Sequence[Any], wanted: Any
) -> bool:
    """Returns whether XLA is to compile an update.

    Args:
        optimizer: The optimizer that makes it.
        trainable: The weights.
        gradients: Their gradients.
        wanted: True, False, or "auto" for large models.
    """
    if wanted is False or has_kernel(optimizer):
        return False
    # A user's own may do what XLA cannot; sparse gradients have no fixed shape.
    own = not is_of_keras(type(optimizer))
    if own or any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        return False
    policy = keras.config.dtype_policy()
    if policy.compute_dtype != policy.variable_dtype:
        return False
    return wanted is True or sum(math.prod(v.shape) for v in trainable) >= LEAST_WEIGHTS


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of tensors, compiled by XLA."""
    return tf.function(function, jit_compile=True, autograph=False)


@contextlib.contextmanager
def within_steps(optimizer: Any) -> Iterator[None]:
    """A context in which an optimizer's `apply` is compiled, for a step of Keras' own.

    Args:
        optimizer: The optimizer. It is left as it is if it has a kernel.
    """
    if has_kernel(optimizer):
        yield
        return
    plain = optimizer.apply

    def apply(grads: Any, trainable_variables: Any = None) -> Any:
        gradients = list(grads)
        given = trainable_variables is not None
        weights = list(trainable_variables) if given else trained_by(optimizer)
        if is_compiled(optimizer, weights, gradients, True):
            return compiled(lambda given: plain(given, trainable_variables))(gradients)
        return plain(gradients, trainable_variables)

    optimizer.apply = apply
    try:
        yield
    finally:
        del optimizer.apply
