"""Defines the interface of an update, which applies a step's reduced gradients."""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf

from tfdist.training.step.reduction import Reduced
from tfdist.training.step.slicing import Slice


class Update(Protocol):
    """The last part of a step: updates the weights, now or after more batches."""

    @property
    def variables(self) -> list[tf.Variable]:
        """What training depends on between updates, beside the model and its optimizer."""

    def loss_scale(self) -> tf.Tensor | None:
        """Returns the factor of the loss for the gradient; None for no factor."""

    def take(self, gradients: list[Any], piece: Slice) -> list[Any]:
        """Takes a batch's gradients, in replica context.

        Args:
            gradients: Of the replica's slice, times its weight and the loss scale.
            piece: That slice.

        Returns:
            Those that are to be reduced over the replicas with this batch.
        """

    def apply(self, reduced: Reduced) -> None:
        """Updates the weights, if this batch ends an update; in cross-replica context."""

    def finish(self) -> None:
        """Updates the weights with the batches taken since the last update. Not in a graph."""

    def calls_to_end(self, count: int) -> int:
        """Returns how many of the next `count` batches to run in one call that ends an update.

        All of them if none of them ends one.
        """

    def is_complete(self) -> bool:
        """Returns whether every batch taken so far is in the weights."""
