"""Carries flags between workers: any worker may raise one in training, and all see it."""

from __future__ import annotations

import enum

import tensorflow as tf

from tfdist.collectives.layout import own_variable


class Flag(enum.IntEnum):
    """The reasons to raise a flag."""

    SAVE_AND_END = 0
    """To save and end the process, as SIGTERM asks."""
    STOP_TRAINING = 1
    """To stop training, as a callback does with `model.stop_training`."""


class WorkerFlags:
    """Shows every worker's flags to all of them, in a collective that runs anyway.

    Each step adds up the workers' flags together with their metrics, so all of them see,
    after the same step, what any of them had raised before it.
    """

    def __init__(self) -> None:
        self._raised = [False] * len(Flag)
        self._sent = own_variable(tf.zeros(len(Flag)))
        self._total = own_variable(tf.zeros(len(Flag)))

    def set(self, flag: Flag, raised: bool = True) -> None:
        """Raises or lowers this worker's flag, from the next step on."""
        if self._raised[flag] != raised:
            self._raised[flag] = raised
            self._sent.assign([float(value) for value in self._raised])

    def own(self) -> tf.Tensor:
        """Returns this worker's flags, float32 of shape (flags,), to be summed."""
        return self._sent.read_value()

    def record(self, total: tf.Tensor) -> None:
        """Records the number of workers that have raised each flag."""
        self._total.assign(total)

    def seen(self, flag: Flag) -> bool:
        """Returns whether a worker had raised it before the latest step; sends nothing."""
        return bool(self._total.numpy()[flag] > 0)

    def clear(self) -> None:
        """Lowers all flags."""
        self._raised = [False] * len(Flag)
        self._sent.assign(tf.zeros(len(Flag)))
        self._total.assign(tf.zeros(len(Flag)))
