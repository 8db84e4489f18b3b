"""Moves tensors between replicas: the interface, and the transport of a single replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf
from typing_extensions import override


class Transport(Protocol):
    """Sums, gathers and broadcasts tensors over replicas.

    All methods are called in replica context (inside `strategy.run`), by every replica, in the
    same order and with the same types and numbers of tensors. The transport decides how tensors
    are packed, and in which type they are sent.

    Attributes:
        replicas: The number of replicas that take part.
        loops: Whether several steps may be made in a loop of a graph.
    """

    replicas: int
    loops: bool

    def sum(self, values: Sequence[Any]) -> list[Any]:
        """Sums tensors of the same shapes on every replica, exactly in their own type."""

    def sum_small(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums many small tensors of static shapes, in one collective per data type."""

    def sum_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Sums gradients: tensors, `tf.IndexedSlices` or None, the same kinds on every replica.

        They may be sent in a narrower type.

        Returns:
            The sums, in the order and with the types of `gradients`.
        """

    def sum_step(
        self, values: Sequence[tf.Tensor], gradients: Sequence[Any]
    ) -> tuple[list[tf.Tensor], list[Any]]:
        """Sums what a step has to sum, in as few collectives as the transport can.

        Args:
            values: As for `sum_small`.
            gradients: As for `sum_gradients`.

        Returns:
            What `sum_small` and `sum_gradients` return.
        """

    def gather(self, structure: Any) -> Any:
        """Concatenates tensors along their first axis, in the replicas' order.

        Args:
            structure: A structure of tensors of rank 1 or more; None where there is nothing. The
                first dimensions may differ between replicas.
        """

    def broadcast(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sends the first replica's tensors to every replica; the shapes are the same on all."""


class SingleReplica(Transport):
    """The transport of a single replica, which returns every value unchanged."""

    replicas = 1
    loops = True

    @override
    def sum(self, values: Sequence[Any]) -> list[Any]:
        return list(values)

    @override
    def sum_small(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(values)

    @override
    def sum_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        return list(gradients)

    @override
    def sum_step(
        self, values: Sequence[tf.Tensor], gradients: Sequence[Any]
    ) -> tuple[list[tf.Tensor], list[Any]]:
        return list(values), list(gradients)

    @override
    def gather(self, structure: Any) -> Any:
        return structure

    @override
    def broadcast(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(values)
