"""Moves many small tensors between a worker and a parameter server as one.

Each variable that a worker reads is a separate message, and so is each gradient: a ResNet50 has 427
small ones a step (biases, BatchNormalization's variables) that make up one hundredth of its
bytes and cost as much as the other 54.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

# Larger tensors fill separate messages.
SMALL_BYTES = 64 << 10


def values_of(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    """Returns the values of variables, each read by itself."""
    return [tf.convert_to_tensor(variable.value) for variable in variables]


def read_packed(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    """Returns the values of variables; small ones of a device come together."""
    values: list[Any] = [None] * len(variables)
    for device, places in _groups(variables):
        with tf.device(device):
            parts = [tf.reshape(variables[i].value, [-1]) for i in places]
            together = tf.concat(parts, axis=0)
        sizes = [_count(variables[i]) for i in places]
        for i, piece in zip(places, tf.split(together, sizes), strict=True):
            values[i] = tf.reshape(piece, variables[i].shape)
    alone = [i for i, value in enumerate(values) if value is None]
    for i, value in zip(alone, values_of([variables[i] for i in alone]), strict=True):
        values[i] = value
    return values


def send_packed(values: Sequence[Any], variables: Sequence[keras.Variable]) -> list[Any]:
    """Sends a value for each variable to its device; small ones of a device go together.

    Args:
        values: Dense tensors of the variables' shapes and types; others are left where they are.
        variables: The variables.
    """
    sent = list(values)
    for device, places in _groups(variables):
        dense = [
            i
            for i in places
            if isinstance(values[i], tf.Tensor) and values[i].dtype == variables[i].dtype
        ]
        if len(dense) < 2:
            continue
        together = tf.concat([tf.reshape(values[i], [-1]) for i in dense], axis=0)
        with tf.device(device):
            pieces = tf.split(together, [_count(variables[i]) for i in dense])
            for i, piece in zip(dense, pieces, strict=True):
                sent[i] = tf.reshape(piece, variables[i].shape)
    return sent


def _groups(variables: Sequence[keras.Variable]) -> list[tuple[str, list[int]]]:
    """Returns the devices of small variables, and the places of two or more of a type there."""
    found: dict[tuple[str, str], list[int]] = {}
    for i, variable in enumerate(variables):
        device = getattr(variable.value, "device", "")
        dtype = tf.as_dtype(variable.dtype)
        if device and _count(variable) * dtype.size <= SMALL_BYTES:
            found.setdefault((device, dtype.name), []).append(i)
    return [(device, places) for (device, _), places in found.items() if len(places) > 1]


def _count(variable: keras.Variable) -> int:
    return math.prod(int(size) for size in variable.shape)
