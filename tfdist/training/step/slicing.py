"""Slices a replica's rows out of a batch, and weighs them: the first part of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.collectives.layout import ReplicaLayout
from tfdist.collectives.replica_context import real_context
from tfdist.errors import ConfigError
from tfdist.partition import part
from tfdist.training.input.batch import rows_between, rows_of


class Slice(NamedTuple):
    """A replica's part of a batch.

    Attributes:
        data: x, (x, y) or (x, y, sample_weight). A slice without rows has one replacement row
            of weight 0, as not every operation works without rows.
        count: Scalar int32, the number of its rows; 0 where `data` is a replacement.
        weight: Scalar float32, the slice's weight in the loss: its share of the global batch, or
            of a nominal one.
        updates: Scalar integer, the number of updates before it; None where the optimizer counts.
    """

    data: Any
    count: tf.Tensor
    weight: tf.Tensor
    updates: tf.Tensor | None = None


# Gives a slice's weight, for its row count and that of the element it was cut from.
Weighing = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def as_the_whole(count: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Weighs a slice that is the whole batch."""
    del count, rows
    return tf.constant(1.0)


def by_batch(count: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Weighs a slice by its share of the global batch: the weights add up to one."""
    return tf.cast(count, tf.float32) / tf.cast(rows, tf.float32)


def by_nominal(nominal: int) -> Weighing:
    """Weighs slices by their share of a batch of `nominal` rows.

    Used if the global batch is not known before the sums are made, or is one of several that
    make an update: the sums are then divided by those of the weights.
    """

    def weigh(count: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        del rows
        return tf.cast(count, tf.float32) / tf.cast(max(1, nominal), tf.float32)

    return weigh


class Slicer:
    """Cuts each replica's slice out of this worker's elements `(data, rows)`.

    Args:
        layout: The replicas of this process.
        whole: Whether `rows` counts the global batch; else it counts this worker's own rows.
        weighing: Computes the weight of a slice.

    Attributes:
        whole: Whether `rows` counts the global batch.
    """

    def __init__(self, layout: ReplicaLayout, *, whole: bool, weighing: Weighing) -> None:
        self._layout = layout
        self.whole = whole
        self._weighing = weighing
        self._stand_ins: dict[str, Any] = {}

    def take_sample(self, data: Any) -> None:
        """Keeps a row of data, for a replica whose slice of a batch of its kind is empty.

        Raises:
            ConfigError: Parts of the batch differ in rows.
        """
        if self._layout.replicas > 1:
            _check_rows(data)
        self._stand_ins[_kind(data)] = rows_between(data, 0, 1)

    def __call__(self, element: Any) -> Slice:
        """Returns this replica's slice; in replica context."""
        data, rows = element
        layout = self._layout
        if layout.local_replicas > 1:
            replica = tf.cast(real_context().replica_id_in_sync_group, tf.int32)
            if self.whole:
                offset, _ = layout.own_rows(rows)
                begin, end = part(rows, layout.replicas, replica)
            else:
                offset = 0
                begin, end = part(rows, layout.local_replicas, replica - layout.first)
            data = rows_between(data, begin - offset, end - offset)
        count = rows_of(data)
        if layout.replicas > 1:
            own, stand_in = data, self._stand_ins[_kind(data)]
            data = tf.cond(count > 0, lambda: own, lambda: stand_in)
        return Slice(data, count, self._weighing(count, rows))


def _kind(data: Any) -> str:
    """Returns the structure of a batch, with types and ranks."""

    def of_leaf(leaf: Any) -> str:
        return "" if leaf is None else f"{leaf.dtype.name} {leaf.shape.rank}"

    return repr(tf.nest.map_structure(of_leaf, data))


def _check_rows(data: Any) -> None:
    """Rejects a batch whose parts differ in their number of rows."""
    counts = dict.fromkeys(int(rows_of(leaf)) for leaf in tf.nest.flatten(data) if leaf is not None)
    if len(counts) > 1:
        raise ConfigError(
            f"data: an element is not one batch: its parts have "
            f"{' and '.join(str(count) for count in counts)} rows, which cannot be "
            "divided among replicas as one batch; give all parts the same number of rows (repeat "
            "or batch the smaller), or train on one device"
        )
