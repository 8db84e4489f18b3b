"""Computes with gradients: dense, sparse (`tf.IndexedSlices`), None, or the weight's new value.

The scales and histories of float8 layers are overwritten with their gradient: such a layer computes
the largest absolute values that it saw as "gradients" of variables, which Keras' optimizers assign
in place of an update. What one device would have seen is the largest of what the replicas saw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.transport import Transport
from tfdist.training.model.inspection import is_overwritten

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


def drop_overwritten(gradients: Sequence[Any], variables: Sequence[keras.Variable]) -> list[Any]:
    """Returns the gradients of those variables that are updated by their gradient."""
    pairs = zip(gradients, variables, strict=True)
    return [gradient for gradient, variable in pairs if not is_overwritten(variable)]


def split_overwritten(
    gradients: Sequence[Any],
    values: Sequence[tf.Tensor],
    variables: Sequence[keras.Variable],
    count: tf.Tensor,
    transport: Transport,
) -> tuple[list[Any], list[tf.Tensor]]:
    """Takes new values out of a replica's gradients, in replica context.

    Args:
        gradients: One for each variable.
        values: What the variables hold.
        variables: The variables.
        count: The number of examples of this replica; with 0 it has seen nothing.
        transport: Reaches the other replicas.

    Returns:
        The gradients, with None for variables that are overwritten; and the new values of these,
        the same on every replica.
    """
    at = [i for i, variable in enumerate(variables) if is_overwritten(variable)]
    if not at:
        return list(gradients), []
    new = [values[i] if gradients[i] is None else gradients[i] for i in at]
    rest = [None if i in at else gradient for i, gradient in enumerate(gradients)]
    return rest, _largest(new, count, transport)


def _largest(
    values: Sequence[tf.Tensor], count: tf.Tensor, transport: Transport
) -> list[tf.Tensor]:
    """Returns the largest of the replicas' values, none of which is negative."""
    if transport.replicas == 1:
        return list(values)
    flat = tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)
    flat = tf.where(count > 0, flat, tf.zeros_like(flat))
    largest = tf.reduce_max(transport.gather(flat[None]), axis=0)
    pieces = tf.split(largest, [value.shape.num_elements() for value in values])
    return [tf.reshape(piece, value.shape) for piece, value in zip(pieces, values, strict=True)]


def _on_values(function: Callable[[tf.Tensor], tf.Tensor], gradient: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = function(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return function(gradient)
