"""Runs a function on the replicas of a strategy, each with values of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def on_replicas(
    strategy: tf.distribute.Strategy, values: Sequence[Any], function: Callable[[Any], Any]
) -> list[Any]:
    """What `function` gives on each replica, for that replica's element of `values`.

    Args:
        strategy: A strategy of one process.
        values: A structure of arrays for each replica, of any shapes.
        function: Is traced, in replica context.
    """
    specs = tf.nest.map_structure(tf.convert_to_tensor, list(values))

    @tf.function(autograph=False)
    def step() -> Any:
        given = strategy.experimental_distribute_values_from_function(
            lambda context: specs[context.replica_id_in_sync_group]
        )
        return strategy.run(function, args=(given,))

    result = step()
    count = strategy.num_replicas_in_sync

    def of_replica(index: int) -> Any:
        def pick(value: Any) -> Any:
            if value is None:
                return None
            return strategy.experimental_local_results(value)[index]

        return tf.nest.map_structure(pick, result)

    return [of_replica(index) for index in range(count)]
