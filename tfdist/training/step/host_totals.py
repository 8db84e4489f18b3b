"""Keeps the sums behind metrics in the memory of one process, which adds what others send it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.training.step.metrics import MetricTotals


def pack(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns tensors as one vector for each type, so that few are sent."""
    types = dict.fromkeys(value.dtype for value in values)
    return [
        tf.concat([tf.reshape(value, [-1]) for value in values if value.dtype == dtype], axis=0)
        for dtype in types
    ]


class HostTotals(MetricTotals):
    """Sums that are added up in NumPy, and written to variables when these are asked for.

    To add a batch's values to variables costs an operation of TensorFlow each, which for a short
    step is more than all else that the chief does.
    """

    _sums: list[np.ndarray] | None = None

    @property
    def variables(self) -> list[tf.Variable]:
        """The sums."""
        self._write()
        return self._variables

    def results(self, reported: Mapping[str, keras.Metric | None] | None = None) -> dict[str, Any]:
        """The metrics' values by name; see `MetricTotals.results`."""
        self._write()
        return super().results(reported)

    def add_packed(self, packed: Sequence[Any]) -> None:
        """Adds the increments of the metrics.

        Args:
            packed: Arrays, as `pack` makes them of the increments.
        """
        if self._sums is None:
            self._sums = [np.array(variable.numpy()) for variable in self._variables]
        whole = {np.asarray(vector).dtype: np.asarray(vector) for vector in packed}
        at = dict.fromkeys(whole, 0)
        for index, total in enumerate(self._sums):
            dtype = total.dtype
            piece = whole[dtype][at[dtype] : at[dtype] + total.size]
            at[dtype] += total.size
            self._sums[index] = total + piece.reshape(total.shape)

    def _write(self) -> None:
        """Writes the sums to the variables, if there are new ones."""
        if self._sums is not None:
            for variable, value in zip(self._variables, self._sums, strict=True):
                variable.assign(value)
            self._sums = None
