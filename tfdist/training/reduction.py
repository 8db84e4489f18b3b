"""Sums over replicas, in as few collectives as there are data types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# What TensorFlow's collectives between processes gather.
_GATHERED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_SUM = tf.distribute.ReduceOp.SUM


def all_reduce(
    context: tf.distribute.ReplicaContext,
    reduce_op: tf.distribute.ReduceOp,
    values: Sequence[Any],
    options: Any = None,
) -> list[Any]:
    """Reduces tensors over all replicas, without a gradient.

    `ReplicaContext.all_reduce` does the same and has a gradient, for which it walks the graph
    back from its results at every call: under MirroredStrategy, where they hang on the other
    replicas' graphs, tracing a ResNet50 with synchronized BatchNormalization took minutes.

    Args:
        context: The current replica context.
        reduce_op: Sum or mean.
        values: Tensors or `tf.IndexedSlices`.
        options: How, a `tf.distribute.experimental.CommunicationOptions`.
    """
    options = options or tf.distribute.experimental.CommunicationOptions()

    def reduce(strategy: tf.distribute.Strategy, *of_replicas: Any) -> Any:
        pairs = [
            (value, value.device if isinstance(value, (tf.Tensor, tf.IndexedSlices)) else value)
            for value in of_replicas
        ]
        return strategy.extended.batch_reduce_to(reduce_op, pairs, options)

    return list(context.merge_call(reduce, args=tuple(values)))


def reduce_gradients(
    gradients: Sequence[Any],
    *,
    bytes_per_pack: int = 0,
    wire_dtype: tf.DType | None = None,
) -> list[Any]:
    """Sums gradients over all replicas, in replica context.

    Args:
        gradients: Tensors, `tf.IndexedSlices` or None, the same kinds on every replica.
        bytes_per_pack: How much is sent at once, in bytes; 0 leaves it to TensorFlow.
        wire_dtype: The type float32 gradients are sent in; None sends them as they are.

    Returns:
        The sums, in the order and with the types of `gradients`.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return list(gradients)
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bytes_per_pack)
    sent: dict[tuple[bool, tf.DType], list[int]] = {}
    values = list(gradients)
    for position, value in enumerate(values):
        if value is None:
            continue
        sparse = isinstance(value, tf.IndexedSlices)
        if wire_dtype is not None and value.dtype == tf.float32 and not sparse:
            values[position] = tf.cast(value, wire_dtype)
        sent.setdefault((sparse, values[position].dtype), []).append(position)
    for positions in sent.values():
        summed = all_reduce(context, _SUM, [values[i] for i in positions], options)
        for position, value in zip(positions, summed, strict=True):
            values[position] = value
    return [
        value if value is None or value.dtype == gradient.dtype else tf.cast(value, gradient.dtype)
        for value, gradient in zip(values, gradients, strict=True)
    ]


def reduce_small(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Sums many small tensors over all replicas in one collective a data type.

    Args:
        values: Tensors of static shape and of a numeric type, the same on every replica.

    Returns:
        The sums, in the same order.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return list(values)
    summed: list[tf.Tensor] = list(values)
    by_dtype: dict[tf.DType, list[int]] = {}
    for position, value in enumerate(values):
        by_dtype.setdefault(value.dtype, []).append(position)
    for positions in by_dtype.values():
        flat = tf.concat([tf.reshape(values[i], [-1]) for i in positions], axis=0)
        (total,) = all_reduce(context, _SUM, [flat])
        pieces = tf.split(total, [values[i].shape.num_elements() for i in positions])
        for position, piece in zip(positions, pieces, strict=True):
            summed[position] = tf.reshape(piece, values[position].shape)
    return summed


def gather(structure: Any) -> Any:
    """Concatenates tensors of all replicas along their first axis, in the replicas' order.

    Args:
        structure: A structure of tensors of rank 1 or more; None where there is nothing. The
            first dimensions may differ between replicas.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return structure

    def of_leaf(value: tf.Tensor | None) -> tf.Tensor | None:
        if value is None:
            return None
        sent = value if value.dtype in _GATHERED else tf.cast(value, _wider(value.dtype))
        return tf.cast(context.all_gather(sent, axis=0), value.dtype)

    return tf.nest.map_structure(of_leaf, structure)


def _wider(dtype: tf.DType) -> tf.DType:
    """A type that holds all values of `dtype` and that collectives take."""
    return tf.float32 if dtype.is_floating else tf.int64
