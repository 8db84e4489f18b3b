"""The transport between the two replicas of a rehearsal, which are on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.replica_context import restored_context
from tfdist.collectives.tensorflow import TensorFlowTransport


class TwoSlices(TensorFlowTransport):
    """Adds up in the graph: TensorFlow's own sums of two replicas need two devices."""

    def __init__(self) -> None:
        super().__init__(2)

    @override
    def sum(self, values: Sequence[Any]) -> list[Any]:
        def merge(strategy: tf.distribute.Strategy, *of_replicas: Any) -> Any:
            return [tf.add_n(strategy.experimental_local_results(value)) for value in of_replicas]

        with restored_context() as context:
            return list(context.merge_call(merge, args=tuple(values)))

    @override
    def sum_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Sums gradients; sparse ones become dense, to be compared."""
        dense = [tf.convert_to_tensor(g) for g in gradients if g is not None]
        sums = iter(self.sum(dense) if dense else [])
        return [None if gradient is None else next(sums) for gradient in gradients]
