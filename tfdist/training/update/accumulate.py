"""Accumulates gradients: one update of the weights from several batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.layout import ReplicaLayout, own_variable
from tfdist.collectives.replica_context import real_context
from tfdist.collectives.transport import Transport
from tfdist.strategy.kinds import kind_of
from tfdist.training.step.gradients import divide
from tfdist.training.step.reduction import Reduced
from tfdist.training.step.slicing import Slice
from tfdist.training.update.apply import OptimizerUpdate


class AccumulatingUpdate:
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
        self._optimize = optimize
        self._batches = batches
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
        self._taken = own_variable(0)
        self._finish = compiled(self._update)

    def loss_scale(self) -> tf.Tensor | None:
        """Returns the factor of the loss for the gradient; None for no factor."""
        return self._optimize.scaler.value()

    @property
    def variables(self) -> list[tf.Variable]:
        """Nothing: between updates no gradients are kept."""
        return []

    def take(self, gradients: list[Any], piece: Slice) -> list[Any]:
        """Adds the gradients up; returns none, as none is reduced with its batch."""
        del piece
        for variable, gradient in zip(self._local_sums(), gradients, strict=True):
            if gradient is not None:
                variable.assign_add(tf.convert_to_tensor(gradient))
        return []

    def apply(self, reduced: Reduced) -> None:
        """Counts the batch, and updates the weights if it is the last of its update."""
        (weight, *_) = self._strategy.experimental_local_results(reduced.weight)
        self._weight.assign_add(weight)
        self._taken.assign_add(1)
        tf.cond(self._taken >= self._batches, self._update, lambda: None)

    def finish(self) -> None:
        """Updates the weights with the batches taken since the last update."""
        if not self.is_complete():
            self._finish()

    def calls_to_end(self, count: int) -> int:
        """Returns how many of the next `count` batches to run in one call that ends an update."""
        taken = int(self._taken)
        to_end = (taken + count) // self._batches * self._batches - taken
        return to_end if to_end > 0 else count

    def is_complete(self) -> bool:
        """Returns whether every batch taken so far is in the weights."""
        return int(self._taken) == 0

    def _update(self) -> None:
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
