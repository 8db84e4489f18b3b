"""Implements the transport with TensorFlow's own collectives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.replica_context import real_context, restored_context
from tfdist.collectives.transport import Transport

# The types that TensorFlow's collectives between processes can gather.
_GATHERED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_SUM = tf.distribute.ReduceOp.SUM


class TensorFlowTransport(Transport):
    """Sums and gathers over the replicas of a `tf.distribute` strategy.

    Args:
        replicas: The number of replicas of the strategy.
        wire_type: bfloat16 or float16, to send float32 gradients in; None for float32.
        bytes_per_pack: The size of the packs in which gradients are sent, in bytes; 0 leaves it
            to the strategy.
        workers: The processes that these replicas are in.
    """

    def __init__(
        self,
        replicas: int,
        *,
        wire_type: str | None = None,
        bytes_per_pack: int = 0,
        workers: int = 1,
    ) -> None:
        self.replicas = replicas
        # Between processes a collective keeps the shape it had first, for as long as a call of a
        # graph lasts; sparse gradients and a last, smaller batch have another one.
        self.loops = workers == 1
        self._wire_type = wire_type
        self._bytes_per_pack = bytes_per_pack

    @override
    def sum(self, values: Sequence[Any]) -> list[Any]:
        return _all_reduce(values, tf.distribute.experimental.CommunicationOptions())

    @override
    def sum_small(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        summed: list[tf.Tensor] = list(values)
        by_dtype: dict[tf.DType, list[int]] = {}
        for position, value in enumerate(values):
            by_dtype.setdefault(value.dtype, []).append(position)
        for positions in by_dtype.values():
            flat = tf.concat([tf.reshape(values[i], [-1]) for i in positions], axis=0)
            (total,) = self.sum([flat])
            pieces = tf.split(total, [values[i].shape.num_elements() for i in positions])
            for position, piece in zip(positions, pieces, strict=True):
                summed[position] = tf.reshape(piece, values[position].shape)
        return summed

    @override
    def sum_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Sums dense gradients, in one collective per data type; concatenates sparse ones."""
        options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=self._bytes_per_pack
        )
        sent: dict[tuple[bool, tf.DType], list[int]] = {}
        values = list(gradients)
        for position, value in enumerate(values):
            if value is None:
                continue
            sparse = isinstance(value, tf.IndexedSlices)
            if self._wire_type is not None and value.dtype == tf.float32 and not sparse:
                values[position] = tf.cast(value, self._wire_type)
            sent.setdefault((sparse, values[position].dtype), []).append(position)
        for (sparse, _), positions in sent.items():
            here = sparse and self._in_one_process()
            sums = _concatenate_slices if here else functools.partial(_all_reduce, options=options)
            summed = sums([values[i] for i in positions])
            for position, value in zip(positions, summed, strict=True):
                values[position] = value
        return [
            value
            if value is None or value.dtype == gradient.dtype
            else tf.cast(value, gradient.dtype)
            for value, gradient in zip(values, gradients, strict=True)
        ]

    @override
    def sum_step(
        self, values: Sequence[tf.Tensor], gradients: Sequence[Any]
    ) -> tuple[list[tf.Tensor], list[Any]]:
        """Sums small tensors, then gradients."""
        return self.sum_small(values), self.sum_gradients(gradients)

    @override
    def gather(self, structure: Any) -> Any:
        if self._in_one_process():
            leaves = [value for value in tf.nest.flatten(structure) if value is not None]
            rest = iter(_concatenate(leaves) if leaves else [])
            return tf.nest.map_structure(
                lambda value: value if value is None else next(rest), structure
            )

        def of_leaf(value: tf.Tensor | None) -> tf.Tensor | None:
            if value is None:
                return None
            sent = value if value.dtype in _GATHERED else tf.cast(value, _wider(value.dtype))
            with restored_context() as context:
                return tf.cast(context.all_gather(sent, axis=0), value.dtype)

        return tf.nest.map_structure(of_leaf, structure)

    def _in_one_process(self) -> bool:
        """Returns whether all replicas are in this process."""
        return len(real_context().strategy.extended.worker_devices) == self.replicas

    @override
    def broadcast(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums the first replica's tensors and the zeros of the others."""
        first = tf.equal(tf.cast(real_context().replica_id_in_sync_group, tf.int32), 0)
        return self.sum([tf.where(first, value, tf.zeros_like(value)) for value in values])


def _all_reduce(values: Sequence[Any], options: Any) -> list[Any]:
    """Sums tensors over all replicas with an all-reduce that has no gradient.

    `ReplicaContext.all_reduce` has a gradient, for which it walks the graph back from its results
    at every call: under MirroredStrategy, where they depend on the other replicas' graphs, tracing
    a ResNet50 with synchronized BatchNormalization took minutes.
    """

    def reduce(strategy: tf.distribute.Strategy, *of_replicas: Any) -> Any:
        pairs = [
            (value, value.device if isinstance(value, (tf.Tensor, tf.IndexedSlices)) else value)
            for value in of_replicas
        ]
        return strategy.extended.batch_reduce_to(_SUM, pairs, options)

    with restored_context() as context:
        return list(context.merge_call(reduce, args=tuple(values)))


def _concatenate(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Concatenates tensors of the replicas of one process along their first axis.

    Without a collective, which would keep the shape that it had first for as long as a call of a
    graph lasts: in a loop of steps the last, smaller batch has another one.
    """

    def concatenate(strategy: tf.distribute.Strategy, *of_replicas: Any) -> Any:
        return [
            strategy.extended.broadcast_to(
                tf.concat(strategy.experimental_local_results(value), axis=0), value
            )
            for value in of_replicas
        ]

    with restored_context() as context:
        return list(context.merge_call(concatenate, args=tuple(values)))


def _concatenate_slices(values: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
    """Sums sparse gradients of the replicas of one process: all their rows, one after another."""
    rows = iter(_concatenate([part for value in values for part in (value.values, value.indices)]))
    return [tf.IndexedSlices(next(rows), next(rows), value.dense_shape) for value in values]


def _wider(dtype: tf.DType) -> tf.DType:
    """Returns a type that holds all values of `dtype` and that collectives accept."""
    return tf.float32 if dtype.is_floating else tf.int64
