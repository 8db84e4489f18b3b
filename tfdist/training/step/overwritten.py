"""Weights that are overwritten with their gradient: the scales and histories of float8 layers.

A float8 layer computes the largest absolute values that it saw as "gradients" of variables, which
Keras' optimizers assign in place of an update
(`keras.src.optimizers.base_optimizer._overwrite_variables_directly_with_gradients`). What one
device would have seen is the largest of what the replicas saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.transport import Transport
from tfdist.training.model.inspection import is_overwritten


def without(gradients: Sequence[Any], variables: Sequence[keras.Variable]) -> list[Any]:
    """Returns the gradients of those variables that are updated by their gradient."""
    pairs = zip(gradients, variables, strict=True)
    return [gradient for gradient, variable in pairs if not is_overwritten(variable)]


def split(
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
