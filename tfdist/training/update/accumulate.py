"""Accumulates gradients: one update of the weights from several batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.layout import ReplicaLayout, own_variable
from tfdist.collectives.replica_context import real_context
from tfdist.collectives.transport import Transport
from tfdist.strategy.kinds import kind_of
from tfdist.training.step.gradients import divide
from tfdist.training.step.reduction import Reduced
from tfdist.training.step.slicing import Slice
from tfdist.training.update.apply import OptimizerUpdate, PeriodicUpdate


class AccumulatingUpdate(PeriodicUpdate):
    """Adds up gradients on each replica, and reduces and applies them every few batches.

    Args:
        optimize: Updates the weights.
        batches: Batches per update.
        trainable: The weights, in the order of their gradients.
        strategy: The strategy they were made under.
        layout: The replicas of this process.
        transport: Sums over the replicas.
        compiled: Compiles a Python function to a graph function.
    """

    def __init__(
        self,
        optimize: OptimizerUpdate,
        batches: int,
        trainable: Sequence[keras.Variable],
        strategy: tf.distribute.Strategy,
        layout: ReplicaLayout,
        transport: Transport,
        compiled: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        super().__init__(optimize, batches, self._apply_sums, compiled)
        self._strategy = strategy
        self._layout = layout
        self._transport = transport
        self._sums: list[list[tf.Variable]] = []
        # The default strategy, of one replica, has no devices to name.
        devices = (
            [None] if kind_of(strategy).name == "default" else strategy.extended.worker_devices
        )
        for device in devices[: layout.local_replicas]:
            with tf.device(device):
                zeros = [tf.zeros(v.shape, v.dtype) for v in trainable]
                self._sums.append([own_variable(zero) for zero in zeros])
        self._weight = own_variable(0.0)

    @override
    def take(self, gradients: list[Any], piece: Slice) -> list[Any]:
        """Adds the gradients up; returns none, as none is reduced with its batch."""
        del piece
        for variable, gradient in zip(self._local_sums(), gradients, strict=True):
            if gradient is not None:
                variable.assign_add(tf.convert_to_tensor(gradient))
        return []

    @override
    def apply(self, reduced: Reduced) -> None:
        (weight, *_) = self._strategy.experimental_local_results(reduced.weight)
        self._weight.assign_add(weight)
        self._count()

    def _apply_sums(self) -> None:
        """Updates the weights with the sums of all replicas, and begins the next update."""
        gradients = self._strategy.run(self._reduce)
        self._optimize(gradients)
        self._weight.assign(0.0)
        self._taken.assign(0)

    def _reduce(self) -> list[Any]:
        """Returns the global batch's gradients, in replica context, and resets the sums."""
        sums = self._local_sums()
        gradients = self._transport.sum_gradients([v.read_value() for v in sums])
        with tf.control_dependencies(gradients):
            for variable in sums:
                variable.assign(tf.zeros_like(variable))
        return [divide(gradient, self._weight.read_value()) for gradient in gradients]

    def _local_sums(self) -> list[tf.Variable]:
        if self._layout.local_replicas == 1:
            return self._sums[0]
        replica = int(tf.get_static_value(real_context().replica_id_in_sync_group))
        return self._sums[replica - self._layout.first]
