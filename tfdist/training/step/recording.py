"""Records the replicas' metrics in the totals of the epoch, in one of three ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.transport import Transport
from tfdist.errors import ConfigError
from tfdist.training.step.metrics import MetricTotals
from tfdist.training.step.replica import ReplicaOutput, ReplicaStep
from tfdist.training.step.slicing import Slice


class MetricRecording:
    """Records the metrics of a step in the totals of the epoch.

    Args:
        totals: Those totals.
    """

    def __init__(self, totals: MetricTotals) -> None:
        self._totals = totals

    def start(self) -> list[tf.Tensor] | None:
        """Returns the initial values of the metrics in a replica's step; None for zeros."""
        return None

    def combine(
        self, values: list[tf.Tensor], output: ReplicaOutput, piece: Slice
    ) -> list[tf.Tensor]:
        """Returns the values to record, in replica context.

        Args:
            values: The metrics' variables, summed over the replicas.
            output: The results of this replica.
            piece: Its slice.
        """
        del output, piece
        return values

    def record(self, values: Sequence[tf.Tensor]) -> None:
        """Records the values that `combine` returned, in cross-replica context."""
        self._totals.assign(values)


class Continued(MetricRecording):
    """Records one replica's metrics, which start from the totals, as Keras' from their state."""

    @override
    def start(self) -> list[tf.Tensor] | None:
        return self._totals.read()


class AddedUp(MetricRecording):
    """Records metrics that keep sums: adds their increments, summed over the replicas."""

    @override
    def record(self, values: Sequence[tf.Tensor]) -> None:
        self._totals.add(values)


class Gathered(MetricRecording):
    """Records other metrics: every replica updates them with the outputs of all replicas."""

    def __init__(self, totals: MetricTotals, step: ReplicaStep, transport: Transport) -> None:
        super().__init__(totals)
        self._step = step
        self._transport = transport

    @override
    def combine(
        self, values: list[tf.Tensor], output: ReplicaOutput, piece: Slice
    ) -> list[tf.Tensor]:
        """Returns the new totals, the same on every replica."""
        pairs = zip(self._totals.variables, values, strict=True)
        totals = [total.read_value() + tf.cast(value, total.dtype) for total, value in pairs]
        if output.outputs is None:
            return totals
        outputs = self._transport.gather(first_rows(output.outputs, piece.count))
        return self._step.update_metrics_together(totals, outputs)


def first_rows(outputs: Any, count: tf.Tensor) -> Any:
    """Returns the outputs of the slice's own rows, without that of a replacement row.

    Raises:
        ConfigError: An output is sparse or ragged, and cannot be put together from the replicas'.
    """

    def rows(value: Any) -> Any:
        if isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
            raise ConfigError(
                f"predict: an output is a {type(value).__name__}, which cannot be put together "
                "from replicas; make it dense (to_dense, to_tensor), or predict on one device"
            )
        return None if value is None else value[:count]

    return tf.nest.map_structure(rows, outputs)
