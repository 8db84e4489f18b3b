"""Counts and slices the rows of a batch of any structure, and makes a row for an empty one."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def rows_of(data: Any) -> tf.Tensor:
    """Returns the number of rows of a batch: a scalar int32, from its first tensor."""
    first = next(leaf for leaf in tf.nest.flatten(data) if leaf is not None)
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int32)
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    return tf.shape(first)[0]


def rows_between(data: Any, begin: Any, end: Any) -> Any:
    """Returns rows `begin` to `end` (exclusive) of every tensor of a batch."""

    def cut(leaf: Any) -> Any:
        if leaf is None:
            return None
        if isinstance(leaf, tf.SparseTensor):
            shape = tf.cast(leaf.dense_shape, tf.int64)
            start = tf.concat([[tf.cast(begin, tf.int64)], tf.zeros_like(shape[1:])], 0)
            size = tf.concat([[tf.cast(end - begin, tf.int64)], shape[1:]], 0)
            return tf.sparse.slice(leaf, start, size)
        return leaf[begin:end]

    return tf.nest.map_structure(cut, data)


def unpack(parts: tuple[Any, ...]) -> Any:
    """Unpacks a dataset's element as Keras does: a tuple's parts are separate arguments."""
    return parts if len(parts) > 1 or isinstance(parts[0], tuple) else parts[0]


def loosen(data: Any) -> Any:
    """Makes the number of rows of a batch unknown to tracing, as in elements of a dataset.

    In some means, Keras counts a batch of known size differently from one of unknown size.
    """
    if tf.executing_eagerly():
        return data

    def of_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or leaf.shape.rank in (None, 0):
            return leaf
        return tf.compat.v1.placeholder_with_default(leaf, [None, *leaf.shape[1:]])

    return tf.nest.map_structure(of_leaf, data)


def row_of_zeros(spec: Any) -> Any:
    """Returns a batch of one row, all zeros, of the structure, types and shapes of `spec`."""

    def row(leaf: tf.TensorSpec) -> tf.Tensor:
        return tf.zeros([1, *(1 if d is None else d for d in leaf.shape[1:])], leaf.dtype)

    return tf.nest.map_structure(row, spec)


def empty_dataset(spec: Any) -> tf.data.Dataset:
    """Returns a dataset of one element without rows."""

    def zero(leaf: tf.TensorSpec) -> tf.Tensor:
        if leaf.shape.rank == 0:
            return tf.zeros([], leaf.dtype)
        rest = [1 if d is None else d for d in leaf.shape[1:]]
        return tf.zeros([0, *rest], leaf.dtype)

    element = tf.nest.map_structure(zero, spec)
    return tf.data.Dataset.from_tensors(element)
