"""One update of the weights from reduced gradients, by the model's own optimizer.

Keras' optimizers assign averages of weights, constraints and the step counter in replica
context, which not every strategy allows. Here they are held back and assigned together, in
cross-replica context, as the loss scale and the overwriting by moving averages are.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist.training.loss_scale import LossScaler
from tfdist.training.moving_average import MovingAverage
from tfdist.training.views import ReducedView


class Update:
    """Updates the weights of one model.

    Args:
        optimizer: The optimizer the model was compiled with.
        trainable: The weights, in the order of their gradients.
        strategy: The strategy they were made under.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        trainable: list[keras.Variable],
        strategy: tf.distribute.Strategy,
    ) -> None:
        self.scaler = LossScaler(optimizer)
        self._optimizer = self.scaler.optimizer
        self._trainable = trainable
        self._strategy = strategy
        self._ema = MovingAverage(self._optimizer, trainable)
        self._captured: list[keras.Variable] = []

    @property
    def iterations(self) -> keras.Variable:
        """The optimizer's count of its updates."""
        return self._optimizer.iterations

    def apply(self, gradients: Any, finite: tf.Tensor, step: tf.Tensor | None = None) -> None:
        """Lets the optimizer update the weights, unless a gradient overflowed.

        Call it in cross-replica context.

        Args:
            gradients: One for each weight, the same on every replica.
            finite: Scalar bool: no gradient overflowed.
            step: The number of this update from 0, where the optimizer's counter does not say
                it; the counter is left alone then.
        """

        def update() -> None:
            with self._ema.held_back():
                captured = self._strategy.run(self._in_replica, args=(gradients, step))
            for variable, value in zip(self._captured, captured, strict=True):
                results = self._strategy.experimental_local_results(value)
                variable.value.assign(results[0])
            self._ema.update(self.iterations.value if step is None else step + 1)

        if self.scaler.dynamic:
            tf.cond(finite, update, lambda: None)
            self.scaler.update(finite)
        else:
            update()

    def _in_replica(self, gradients: Any, step: tf.Tensor | None) -> list[tf.Tensor]:
        """Applies the gradients; returns what the optimizer assigned in replica context."""
        given = [] if step is None else [(self.iterations, step)]
        real = tf.distribute.get_replica_context()
        gradients = self.scaler.unscale(gradients)
        with ReducedView(real), keras.StatelessScope(given) as scope:
            self._optimizer.apply(gradients, self._trainable)
        candidates = [*self._optimizer.variables, *self._trainable]
        self._captured = [
            variable
            for variable in candidates
            if scope.get_current_value(variable) is not None
            and not (given and variable is self.iterations)
        ]
        return [tf.cast(scope.get_current_value(v), v.dtype) for v in self._captured]
