"""Computes with gradients, which may be dense, sparse (`tf.IndexedSlices`) or None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

_OF_SHAPES = ("Shape", "Size", "Rank")


def multiply(gradient: Any, by: tf.Tensor) -> Any:
    """Multiplies a gradient by a scalar."""
    return _on_values(lambda values: values * tf.cast(by, values.dtype), gradient)


def divide(gradient: Any, by: tf.Tensor) -> Any:
    """Divides a gradient by a scalar."""
    return _on_values(lambda values: values / tf.cast(by, values.dtype), gradient)


def divide_if_any(gradient: Any, by: tf.Tensor) -> Any:
    """Divides a gradient by a scalar; zeros where that is zero."""
    return _on_values(
        lambda values: tf.math.divide_no_nan(values, tf.cast(by, values.dtype)), gradient
    )


def is_constant(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor is computed from constants alone: the same on all replicas.

    Args:
        tensor: Any tensor; the result is False for one computed eagerly.
    """
    if not isinstance(getattr(tensor, "graph", None), tf.Graph):
        return False
    seen: set[int] = set()
    stack = [tensor.op]
    while stack:
        operation = stack.pop()
        if id(operation) in seen:
            continue
        seen.add(id(operation))
        if operation.op_def.is_stateful or not (operation.inputs or operation.type == "Const"):
            return False
        if operation.type in _OF_SHAPES and operation.inputs[0].shape.is_fully_defined():
            continue
        stack.extend(source.op for source in operation.inputs)
    return True


def through_assignments(
    tape: tf.GradientTape,
    loss: tf.Tensor,
    values: list[tf.Tensor],
    variables: Sequence[keras.Variable],
    replaced: Sequence[tuple[keras.Variable, tf.Tensor]],
) -> list[Any]:
    """Returns gradients with respect to the variables' values, before and after assignments.

    Args:
        tape: The tape, which watched `values` and the assigned values.
        loss: The loss.
        values: The variables' values before the step.
        variables: The variables.
        replaced: Variables and the values that a layer assigned to them in the step.
    """
    later = [value for _, value in replaced]
    gradients = tape.gradient(loss, [*values, *later])
    own, more = gradients[: len(values)], gradients[len(values) :]
    position = {id(variable): i for i, variable in enumerate(variables)}
    for (variable, _), gradient in zip(replaced, more, strict=True):
        i = position[id(variable)]
        if gradient is not None:
            gradient = tf.convert_to_tensor(gradient)
            own[i] = gradient if own[i] is None else tf.convert_to_tensor(own[i]) + gradient
    return own


def _on_values(function: Callable[[tf.Tensor], tf.Tensor], gradient: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = function(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return function(gradient)
