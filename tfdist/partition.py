"""Divides the rows of a batch or a dataset into parts: the one rule for all of tfdist."""

from __future__ import annotations

from typing import Any


def part(total: Any, parts: Any, index: Any, count: Any = 1) -> tuple[Any, Any]:
    """Returns the rows of `total` that belong to one part, or to several adjacent parts.

    Parts are contiguous, in order, and differ by one row at most; part `i` begins at
    `i * total // parts`. Adjacent parts together equal one part of a coarser division, so
    dividing a batch over all replicas gives the same rows as dividing it over the workers and
    then over the replicas of each.

    Args:
        total: The number of rows.
        parts: The number of parts they are divided into.
        index: The first part to return, from 0.
        count: The number of adjacent parts to return.

    Returns:
        The first row and the row after the last: integers, or scalar tensors where any argument
        is one.

    Example:
        >>> [part(7, 2, worker) for worker in range(2)]
        [(0, 3), (3, 7)]
    """
    return index * total // parts, (index + count) * total // parts
