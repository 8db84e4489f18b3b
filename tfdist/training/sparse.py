"""Arithmetic on gradients that may be dense, sparse (`tf.IndexedSlices`) or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def multiply(gradient: Any, by: tf.Tensor) -> Any:
    """Multiplies a gradient by a scalar."""
    return _on_values(lambda values: values * tf.cast(by, values.dtype), gradient)


def divide(gradient: Any, by: tf.Tensor) -> Any:
    """Divides a gradient by a scalar."""
    return _on_values(lambda values: values / tf.cast(by, values.dtype), gradient)


def _on_values(function: Callable[[tf.Tensor], tf.Tensor], gradient: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = function(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return function(gradient)
