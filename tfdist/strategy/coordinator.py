"""Gives a ParameterServerStrategy a coordinator that stops in time for the process to end.

TensorFlow's stops when it is deleted, as Python ends, and waits for a lock for that. A thread that
was to note that a lost worker had come back may have the lock, and Python has ended all threads.
"""

from __future__ import annotations

import tensorflow as tf

from tfdist.runtime import shutdown


class Coordinator(tf.distribute.coordinator.ClusterCoordinator):
    """Stops once, when the process ends and its threads still run."""

    _is_stopped = False

    def __del__(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            super().__del__()


def coordinator_of(strategy: tf.distribute.Strategy) -> Coordinator:
    """Returns the coordinator of a ParameterServerStrategy, of which each has one."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    if not isinstance(coordinator, Coordinator):
        coordinator.__class__ = Coordinator  # The strategy may have made it before.
        shutdown.at_exit("TensorFlow's coordinator", coordinator.__del__)
    return coordinator
