"""What a process holds of a strategy: its replicas, with their rows and devices, and variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.keras_internals import ResourceVariable
from tfdist.partition import part


@dataclass(frozen=True)
class ReplicaLayout:
    """The replicas that this process holds, among those of all processes.

    Attributes:
        worker: This worker's index.
        workers: The number of workers.
        local_replicas: Replicas in this process.
        replicas: Replicas in all processes.
    """

    worker: int = 0
    workers: int = 1
    local_replicas: int = 1
    replicas: int = 1

    @property
    def first(self) -> int:
        """The number of this process's first replica."""
        return self.worker * self.local_replicas

    def own_rows(self, rows: Any) -> tuple[Any, Any]:
        """Returns the begin and end of this worker's part of a global batch of `rows` rows."""
        return part(rows, self.replicas, self.first, self.local_replicas)


def on_cpus(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the replicas of this process are on CPUs.

    Args:
        strategy: A strategy that was built, not TensorFlow's default one.
    """
    names = strategy.extended.worker_devices
    return all(tf.DeviceSpec.from_string(name).device_type == "CPU" for name in names)


def own_variable(initial: Any) -> tf.Variable:
    """Makes a variable of this process, also inside a strategy's scope.

    In a scope `tf.Variable` makes the strategy's kind, which some strategies do not let a replica
    assign.

    Args:
        initial: Its first value.
    """
    return ResourceVariable(initial, trainable=False)
