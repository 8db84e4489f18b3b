"""Decides which optimizers' updates XLA compiles, and compiles them.

Keras' optimizers make a dozen operations a weight, each of which reads and writes memory as large
as the weight; compiled, one pass does them all. XLA contracts a multiplication and an addition into
one operation with one rounding, so the last bit of a number may differ from Keras'.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.training.update.kernels import has_kernel

AUTO = "auto"
# Compiling takes seconds, which an update of fewer weights does not bring in again soon.
LEAST_WEIGHTS = 1_000_000


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
    own = type(optimizer).__module__.startswith("keras.src.optimizers.")
    if not own or any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
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
        weights = optimizer._trainable_variables if trainable_variables is None else None
        weights = list(trainable_variables) if weights is None else weights
        if is_compiled(optimizer, weights, gradients, True):
            return compiled(lambda given: plain(given, trainable_variables))(gradients)
        return plain(gradients, trainable_variables)

    optimizer.apply = apply
    try:
        yield
    finally:
        del optimizer.apply
