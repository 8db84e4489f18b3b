"""How far two cells' values are apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Values = dict[str, np.ndarray]


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference, in units of the largest value (1 at least); inf for other shapes."""
    if one.shape != other.shape:
        return float("inf")
    if one.dtype.kind not in "fiub" or other.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(one, other) else float("inf")
    if one.size == 0:
        return 0.0
    a, b = one.astype("float64"), other.astype("float64")
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(a)
    if not finite.any():
        return 0.0
    scale = max(1.0, float(np.abs(a[finite]).max()))
    return float(np.abs(a[finite] - b[finite]).max()) / scale


def differences(
    reference: Values, values: Values, only: Sequence[str] | None = None
) -> dict[str, float]:
    """The differences by name, of those that begin like one of `only`; missing values are inf."""
    names = [*reference, *(name for name in values if name not in reference)]
    if only is not None:
        names = [name for name in names if name.startswith(tuple(only))]
    return {
        name: difference(reference[name], values[name])
        if name in reference and name in values
        else float("inf")
        for name in names
    }
