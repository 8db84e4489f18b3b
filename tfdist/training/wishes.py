"""What one worker wishes for in the midst of training, told to all of them."""

from __future__ import annotations

import enum

import tensorflow as tf


class Wish(enum.IntEnum):
    """What a worker may wish for."""

    LEAVE = 0
    """To save and end the process, as SIGTERM asks."""
    STOP = 1
    """To stop training, as a callback does with `model.stop_training`."""


class Wishes:
    """Tells all workers of each one's wishes, in a collective that runs anyway.

    Each step adds up the workers' wishes together with their metrics, so all of them see,
    after the same step, what any of them wished for before it.
    """

    def __init__(self) -> None:
        self._own = tf.Variable(tf.zeros(len(Wish)), trainable=False)
        self._total = tf.Variable(tf.zeros(len(Wish)), trainable=False)
        self._wished = [False] * len(Wish)

    def wish(self, kind: Wish, wished: bool = True) -> None:
        """Has this worker wish for something, or no longer, from the next step on."""
        if self._wished[kind] != wished:
            self._wished[kind] = wished
            self._own.assign([float(value) for value in self._wished])

    def own(self) -> tf.Tensor:
        """This worker's wishes, float32 of shape (kinds,), to be added up."""
        return self._own.read_value()

    def record(self, total: tf.Tensor) -> None:
        """Takes down how many workers wish for each kind."""
        self._total.assign(total)

    def agreed(self, kind: Wish) -> bool:
        """Whether some worker wished for it in the latest step."""
        return bool(self._total.numpy()[kind] > 0)

    def clear(self) -> None:
        """Forgets all wishes."""
        self._wished = [False] * len(Wish)
        self._own.assign(tf.zeros(len(Wish)))
        self._total.assign(tf.zeros(len(Wish)))
