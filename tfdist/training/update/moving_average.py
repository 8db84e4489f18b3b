"""Supports `use_ema` of Keras' optimizers under tf.distribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


class MovingAverage:
    """Overwrites weights with their moving average, which Keras cannot do in replica context.

    Args:
        optimizer: The optimizer that keeps the averages, if it does.
        trainable: The weights.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        trainable: Sequence[keras.Variable],
    ) -> None:
        self._optimizer = optimizer
        self._trainable = trainable
        self._frequency = getattr(optimizer, "ema_overwrite_frequency", None)
        if not getattr(optimizer, "use_ema", False):
            self._frequency = None

    def held_back(self) -> Any:
        """Returns a context in which the optimizer leaves the overwriting to `update`."""
        return _Attribute(self._optimizer, "ema_overwrite_frequency", None)

    def update(self, steps: tf.Tensor) -> None:
        """Overwrites the weights at the optimizer's frequency, in cross-replica context.

        Args:
            steps: The number of updates of the weights so far.
        """
        if not self._frequency:
            return
        averages = [v for v in self._optimizer.variables if v.name.endswith("average")]
        due = tf.equal(tf.cast(steps, tf.int64) % self._frequency, 0)

        def overwrite() -> None:
            for variable, average in zip(self._trainable, averages, strict=True):
                value = tf.convert_to_tensor(average.value)
                # As in Keras, whose constraints come after the overwriting.
                constraint = variable.constraint
                variable.value.assign(value if constraint is None else constraint(value))

        tf.cond(due, overwrite, lambda: None)


class _Attribute:
    """Sets an attribute within a `with` block."""

    def __init__(self, thing: Any, name: str, value: Any) -> None:
        self._thing, self._name, self._value = thing, name, value

    def __enter__(self) -> None:
        self._old = getattr(self._thing, self._name, None)
        setattr(self._thing, self._name, self._value)

    def __exit__(self, *_: object) -> None:
        setattr(self._thing, self._name, self._old)
