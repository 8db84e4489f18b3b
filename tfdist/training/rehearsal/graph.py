"""Runs a function of rows as a graph, of which only the results are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.training.rehearsal.compare import Results, numbers


class Graph:
    """A function of rows as a graph, of which only the results run: nothing is assigned."""

    def __init__(self, function: Callable[[Any], dict[str, Any]], element: Any) -> None:
        data, rows = element
        self._structure = data
        names: list[str] = []

        def traced(rows: tf.Tensor, *leaves: Any) -> list[tf.Tensor]:
            results = function((self._packed(leaves), rows))
            names[:] = results
            return list(results.values())

        specs = [_spec(leaf) for leaf in self._leaves(data)]
        wrapped = tf.compat.v1.wrap_function(traced, [tf.TensorSpec([], rows.dtype), *specs])
        self._names = names
        self._run = wrapped.prune(wrapped.inputs, wrapped.outputs)

    def __call__(self, element: Any) -> Results:
        """Returns the results for rows of data, and their number, as numbers by name."""
        data, rows = element
        leaves = tf.nest.flatten(self._leaves(data), expand_composites=True)
        values = self._run(rows, *leaves)
        return numbers(dict(zip(self._names, values, strict=True)))

    def _leaves(self, data: Any) -> list[Any]:
        return [leaf for leaf in tf.nest.flatten(data) if leaf is not None]

    def _packed(self, leaves: Sequence[Any]) -> Any:
        rest = iter(leaves)
        return tf.nest.map_structure(
            lambda leaf: None if leaf is None else next(rest), self._structure
        )


def _spec(leaf: Any) -> Any:
    """Returns the type of a tensor of any number of rows."""
    if isinstance(leaf, tf.RaggedTensor):
        return tf.RaggedTensorSpec(
            [None, *leaf.shape[1:]], leaf.dtype, leaf.ragged_rank, leaf.row_splits.dtype
        )
    if isinstance(leaf, tf.SparseTensor):
        return tf.SparseTensorSpec([None, *leaf.shape[1:]], leaf.dtype)
    return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)
