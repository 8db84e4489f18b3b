"""Checks state that a step assigns and that depends on the slice of one replica.

Floating-point statistics of slices are averaged, as those of BatchNormalization are. The user is
warned where their own layer has them: an average of maxima, for example, is not the maximum. An
integer that depends on the slice, such as a count of the rows seen, cannot be averaged and is
rejected.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.keras_internals import flatten_layers, is_of_keras, own_state
from tfdist.runtime.log import LOGGER
from tfdist.training.model.inspection import is_seed

# Variables of which the user has been warned.
_warned: list[weakref.ref[keras.Variable]] = []


def check_state(
    variables: Sequence[keras.Variable], values: Sequence[tf.Tensor], data: Any, model: keras.Model
) -> None:
    """Rejects integers that depend on a replica's slice, and warns of other such numbers.

    Call it in a graph, in replica context. There is no warning for variables of Keras' own layers,
    such as the moving statistics of BatchNormalization.

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
        if is_seed(variable) or tf.executing_eagerly():
            continue
        if value.dtype.is_floating:
            if not _warned_of(variable, model) and _depends([value], sources):
                _warned.append(weakref.ref(variable))
                LOGGER.warning(
                    "%s: %s is assigned a number that depends on the batch, of which each replica "
                    "sees a slice: the mean of the replicas' numbers is kept, which is right for "
                    "a mean, but not for a maximum, for example",
                    *(type(model).__name__, variable.path),
                )
            continue
        if _depends([value], sources):
            raise ConfigError(
                f"{type(model).__name__}: {variable.path} is assigned an integer that depends on "
                "the batch, of which each replica sees a slice only; make it a metric, or a number "
                "that is the same for every slice"
            )


def _warned_of(variable: keras.Variable, model: keras.Model) -> bool:
    """Returns whether a warning was given before, or a layer of Keras owns the variable."""
    if any(variable is known() for known in _warned):
        return True
    of_keras = (layer for layer in flatten_layers(model) if is_of_keras(type(layer)))
    return any(variable is kept for layer in of_keras for kept in own_state(layer))


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
