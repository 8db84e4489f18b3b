"""Two replicas on one device, and the transport between them, for a rehearsal in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.replica_context import restored_context
from tfdist.collectives.transport import Transport


class TwoSlices(Transport):
    """Carries tensors between the replicas of one process, which are on one device."""

    replicas = 2
    loops = True

    @override
    def sum(self, values: Sequence[Any]) -> list[Any]:
        return _merged(tf.add_n, values)

    @override
    def sum_small(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self.sum(values)

    @override
    def sum_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        dense = [tf.convert_to_tensor(g) for g in gradients if g is not None]
        sums = iter(self.sum(dense) if dense else [])
        return [None if gradient is None else next(sums) for gradient in gradients]

    @override
    def sum_step(
        self, values: Sequence[tf.Tensor], gradients: Sequence[Any]
    ) -> tuple[list[tf.Tensor], list[Any]]:
        return self.sum_small(values), self.sum_gradients(gradients)

    @override
    def gather(self, structure: Any) -> Any:
        leaves = [leaf for leaf in tf.nest.flatten(structure) if leaf is not None]
        rest = iter(_merged(lambda parts: tf.concat(parts, axis=0), leaves) if leaves else [])
        return tf.nest.map_structure(lambda leaf: None if leaf is None else next(rest), structure)

    @override
    def broadcast(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return _merged(lambda parts: parts[0], values)


def _merged(
    function: Callable[[Sequence[tf.Tensor]], tf.Tensor], values: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Returns what a function makes of the replicas' tensors: the same tensor on each replica."""

    def merge(strategy: tf.distribute.Strategy, *of_replicas: Any) -> Any:
        return [function(strategy.experimental_local_results(value)) for value in of_replicas]

    with restored_context() as context:
        return list(context.merge_call(merge, args=tuple(values)))
