"""Compares what came out of two steps, with what rounding does to it."""

from __future__ import annotations

from typing import Any

import numpy as np

# Of the largest value of a tensor, and of what rounding alone does to it.
_TOLERANCE = 5e-5
_ROUNDINGS = 50.0

# What comes out of a step, by name.
Results = dict[str, np.ndarray]

# The beginnings of the names.
ADDED = "add_loss "
ASSIGNED = "what is assigned to the tf.Variable "
COMPUTED = "compute_loss"
GRADIENT = "the gradient of "
LOG = "the log "


def numbers(results: dict[str, Any]) -> Results:
    """Returns the results as numbers that can be subtracted; texts are left out."""
    arrays = {name: np.asarray(value) for name, value in results.items()}
    return {n: a.astype("float64") for n, a in arrays.items() if a.dtype.kind not in "OSU"}


def difference(whole: Results, sliced: Results, rounded: Results) -> str:
    """Returns the first quantity that differs by more than rounding, with both numbers."""
    gradients = [np.abs(v).max(initial=0) for n, v in whole.items() if n.startswith(GRADIENT)]
    for name in [*whole, *(name for name in sliced if name not in whole)]:
        if name.startswith((ADDED, COMPUTED)):
            continue
        if name not in whole or name not in sliced:
            return f"{name} is not computed on each of them"
        one, other = whole[name], sliced[name]
        if one.shape != other.shape:
            return f"{name} has shape {other.shape} in the place of {one.shape}"
        noise = np.abs(one - rounded[name]).max(initial=0) if name in rounded else 0.0
        size = np.abs(one).max(initial=0)
        if name.startswith(GRADIENT):
            size = max(size, 0.01 * max(gradients))
        allowed = _TOLERANCE * size + _ROUNDINGS * noise
        apart = np.abs(one - other)
        wrong = ~((apart <= allowed) | (np.isnan(one) & np.isnan(other)) | (one == other))
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            return f"{name} is {other[at]:.6g} in the place of {one[at]:.6g}"
    return ""


def close(one: np.ndarray, other: np.ndarray) -> bool:
    """Returns whether two tensors are the same but for roundings."""
    size = max(np.abs(one).max(initial=0), np.abs(other).max(initial=0))
    return one.shape == other.shape and bool(np.abs(one - other).max(initial=0) <= 1e-4 * size)
