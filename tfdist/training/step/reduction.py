"""Reduces the replicas' outputs to the result of one device: the third part of a step."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.collectives.transport import Transport
from tfdist.collectives.worker_flags import WorkerFlags
from tfdist.training.step.gradients import divide, is_constant
from tfdist.training.step.recording import MetricRecording
from tfdist.training.step.replica import ReplicaOutput
from tfdist.training.step.slicing import Slice


class Reduced(NamedTuple):
    """The result of a step of all replicas, the same on each of them.

    Attributes:
        gradients: Of the global batch's loss, times the loss scale; those that were passed.
        metrics: The metric values to record.
        state: New values of the variables that the model itself changes.
        logs: Scalars that an overridden step returned as well as the metrics.
        weight: Scalar float32, the sum of the slices' weights: the batch in nominal batches.
        updated: New values that the step itself computed; see `ReplicaOutput`.
    """

    gradients: list[Any]
    metrics: list[tf.Tensor]
    state: list[tf.Tensor]
    logs: dict[str, tf.Tensor]
    weight: tf.Tensor
    updated: list[tf.Tensor]


class Reduction:
    """Sums and averages over the replicas, in as few collectives as there are types.

    Args:
        transport: Sums over the replicas.
        recording: Records the metrics.
        flags: The workers' flags, which are summed with the metrics.
        weights_add_up: Whether the slices' weights add up to one over the replicas.
    """

    def __init__(
        self,
        transport: Transport,
        recording: MetricRecording,
        flags: WorkerFlags,
        *,
        weights_add_up: bool,
    ) -> None:
        self._transport = transport
        self._recording = recording
        self._flags = flags
        self._weights_add_up = weights_add_up

    def predicted_state(self, values: list[tf.Tensor], weight: tf.Tensor) -> list[tf.Tensor]:
        """Averages the floating-point state that the model changed on the replicas.

        Args:
            values: A replica's values.
            weight: The weight of its slice.
        """
        weighed = _weighed(values, weight)
        if self._transport.replicas == 1 or not weighed:
            return values
        total, *sums = self._transport.sum_small([weight, *weighed])
        return _with_means(values, [value / tf.cast(total, value.dtype) for value in sums])

    def __call__(self, output: ReplicaOutput, piece: Slice, gradients: list[Any]) -> Reduced:
        """Reduces a replica's output, in replica context.

        Args:
            output: The results of the replica.
            piece: The slice it computed on.
            gradients: Those of the output that are to be reduced with it: all, or none where
                they are accumulated first.
        """
        if self._transport.replicas == 1:
            metrics = self._recording.combine(output.metrics, output, piece)
            return Reduced(
                gradients, metrics, output.state, output.logs, piece.weight, output.updated
            )
        weighed = _weighed(output.state, piece.weight)
        (weight, *sums, flags), gradients = self._sum(
            [
                piece.weight,
                *output.metrics,
                *weighed,
                *(value * piece.weight for value in output.logs.values()),
                self._flags.own(),
            ],
            gradients,
        )
        self._flags.record(flags)
        grown, means = sums[: len(output.metrics)], sums[len(output.metrics) :]
        if not self._weights_add_up:
            means = [value / tf.cast(weight, value.dtype) for value in means]
        state = _with_means(output.state, means[: len(weighed)])
        logs = dict(zip(output.logs, means[len(weighed) :], strict=True))
        metrics = self._recording.combine(grown, output, piece)
        if not self._weights_add_up:
            gradients = [divide(gradient, weight) for gradient in gradients]
        return Reduced(gradients, metrics, state, logs, weight, output.updated)

    def _sum(
        self, values: list[tf.Tensor], gradients: list[Any]
    ) -> tuple[list[tf.Tensor], list[Any]]:
        """Returns the sums of the replicas' small tensors and gradients.

        Sparse ones are concatenated, as one device computes them from the rows of a batch. Where
        their indices are constants (positions of words, not words), one device has each index once
        for all rows, so the values are summed instead: Keras' optimizers square each value.
        """
        constant = [
            isinstance(gradient, tf.IndexedSlices) and is_constant(gradient.indices)
            for gradient in gradients
        ]
        small, sums = self._transport.sum_step(
            values,
            [
                gradient.values if same else gradient
                for gradient, same in zip(gradients, constant, strict=True)
            ],
        )
        return small, [
            tf.IndexedSlices(total, own.indices, own.dense_shape) if same else total
            for total, own, same in zip(sums, gradients, constant, strict=True)
        ]


def _weighed(values: list[tf.Tensor], weight: tf.Tensor) -> list[tf.Tensor]:
    """Returns the floating-point values, multiplied by the weight of a slice."""
    return [value * tf.cast(weight, value.dtype) for value in values if value.dtype.is_floating]


def _with_means(values: list[tf.Tensor], means: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the values, with the floating-point ones replaced by means."""
    rest = iter(means)
    return [next(rest) if value.dtype.is_floating else value for value in values]
