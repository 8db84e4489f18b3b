"""Rejects whole numbers that a step assigns and that depend on the slice of one replica.

Floating-point statistics of slices are averaged, as those of BatchNormalization are; whether that
is right shows in the rehearsal of the step. An integer that depends on the slice, such as a count
of the rows seen, cannot be averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.training.model.inspection import is_seed


def check_state(
    variables: Sequence[keras.Variable], values: Sequence[tf.Tensor], data: Any, model: keras.Model
) -> None:
    """Rejects integers that depend on a replica's slice.

    Call it in a graph, in replica context.

    Args:
        variables: The variables that the step assigns.
        values: The new values.
        data: The slice.
        model: The model, for the message.

    Raises:
        ConfigError: Names the variable.
    """
    sources = {leaf.ref() for leaf in tf.nest.flatten(data) if isinstance(leaf, tf.Tensor)}
    for variable, value in zip(variables, values, strict=True):
        if is_seed(variable) or tf.executing_eagerly() or value.dtype.is_floating:
            continue
        if _depends([value], sources):
            raise ConfigError(
                f"{type(model).__name__}: {variable.path} is assigned an integer that depends on "
                "the batch, of which each replica sees a slice only; make it a metric, or a number "
                "that is the same for every slice"
            )


def _depends(values: Iterable[tf.Tensor], sources: set[Any]) -> bool:
    """Returns whether one of the values is computed from one of the sources."""
    stack, seen = list(values), set[Any]()
    while stack:
        tensor = stack.pop()
        if tensor.ref() in sources:
            return True
        if tensor.ref() not in seen:
            seen.add(tensor.ref())
            stack.extend(tensor.op.inputs)
    return False
