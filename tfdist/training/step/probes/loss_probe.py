"""Finds out whether a loss compares the examples of a batch; a user's is tried on a few rows."""

from __future__ import annotations

import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.keras_internals import is_of_keras

_ROWS = 3
_TOLERANCE = 1e-4

# The result for each loss, which is tried once.
_found: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def compares_examples(loss: keras.Loss, y_true: Any, y_pred: Any) -> bool:
    """Returns whether a loss's value for an example depends on the other examples of the batch.

    Keras' own losses are known. A user's is computed on three rows of random numbers together, and
    on each row alone. The numbers are the same in every process, so that all workers get the same
    result.

    Args:
        loss: A loss that returns a value for each example.
        y_true: A batch of targets, of which only shapes and types are used.
        y_pred: A batch of predictions, of which only shapes and types are used.

    Returns:
        The result; False for a user's loss that fails on such rows.
    """
    if _is_over_batch(loss):
        return True
    if is_of_keras(getattr(loss, "fn", None) or type(loss)):
        return False
    if loss not in _found:
        _found[loss] = _try(loss, y_true, y_pred)
    return _found[loss]


def mark_as_comparing(loss: keras.Loss) -> None:
    """Makes `compares_examples` return True for a loss, whatever random numbers showed."""
    _found[loss] = True


def _is_over_batch(loss: keras.Loss) -> bool:
    """Returns whether a loss is one of Keras' that compare or sum the examples of a batch."""
    if isinstance(loss, keras.losses.Circle):
        return True
    if not isinstance(loss, (keras.losses.Dice, keras.losses.Tversky)):
        return False
    axis = loss.axis
    return axis is None or 0 in (axis if isinstance(axis, (list, tuple)) else (axis,))


def _try(loss: keras.Loss, y_true: Any, y_pred: Any) -> bool:
    random = np.random.default_rng(0)

    def rows(tensor: Any) -> Any:
        shape = [1 if n is None else n for n in tensor.shape[1:]]
        if tensor.dtype.is_floating:
            return tf.constant(random.uniform(0.05, 0.95, [_ROWS, *shape]), tensor.dtype)
        return tf.constant(random.integers(0, 2, [_ROWS, *shape]), tensor.dtype)

    def value(*structures: Any) -> np.ndarray:
        return np.asarray(loss.call(*structures), "float64")

    try:
        with tf.init_scope():
            given = tf.nest.map_structure(rows, (y_true, y_pred))
            together = value(*given)
            if together.shape[:1] != (_ROWS,):
                return False
            alone = [
                value(*tf.nest.map_structure(lambda t, i=i: t[i : i + 1], given))
                for i in range(_ROWS)
            ]
        apart = np.concatenate(alone)
    except Exception:  # A user's function may raise anything.
        return False
    if apart.shape != together.shape:
        return False
    return not np.allclose(apart, together, _TOLERANCE, _TOLERANCE, equal_nan=True)
