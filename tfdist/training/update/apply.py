"""Updates the weights from reduced gradients with the model's own optimizer.

Keras' optimizers assign averages of weights, constraints and the step counter in replica
context, which not every strategy allows. Here they are deferred and assigned together, in
cross-replica context, as are the loss scale and the overwriting by moving averages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.layout import own_variable
from tfdist.collectives.replica_context import ReducedView
from tfdist.keras_internals import assign_directly
from tfdist.training.model.inspection import is_overwritten
from tfdist.training.step.gradients import drop_overwritten
from tfdist.training.step.reduction import Reduced
from tfdist.training.step.replica import ReplicaStep
from tfdist.training.step.slicing import Slice
from tfdist.training.update.kernels import compiled, fused, is_compiled
from tfdist.training.update.loss_scale import LossScaler
from tfdist.training.update.moving_average import MovingAverage


class OptimizerUpdate:
    """Updates the weights with the optimizer that a model was compiled with.

    Args:
        optimizer: That optimizer.
        trainable: The weights, in the order of their gradients.
        strategy: The strategy they were made under.
        compiles: Whether XLA compiles the update: True, False, or "auto" for large models.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        trainable: Sequence[keras.Variable],
        strategy: tf.distribute.Strategy,
        *,
        compiles: bool | str = False,
    ) -> None:
        self.scaler = LossScaler(optimizer)
        self._optimizer = self.scaler.optimizer
        self._trainable = trainable
        self._updated = drop_overwritten(trainable, trainable)
        self._overwritten = [v for v in trainable if is_overwritten(v)]
        self._strategy = strategy
        self._compiles = compiles
        self._ema = MovingAverage(self._optimizer, trainable)
        self._captured: list[keras.Variable] = []

    @property
    def iterations(self) -> keras.Variable:
        """The optimizer's count of its updates."""
        return self._optimizer.iterations

    @property
    def looks_at_all(self) -> bool:
        """Whether an update begins by looking at all gradients, and not where each weight is."""
        clips = ("clipnorm", "global_clipnorm", "clipvalue")
        limits = [getattr(self._optimizer, name, None) for name in clips]
        return self.scaler.value() is not None or any(limit is not None for limit in limits)

    def __call__(
        self, gradients: Any, step: tf.Tensor | None = None, overwritten: Sequence[Any] = ()
    ) -> tf.Tensor:
        """Updates the weights, unless a gradient overflowed; in cross-replica context.

        Args:
            gradients: One for each weight, the same on every replica.
            step: The number of this update from 0, where the optimizer's counter does not hold
                it; the counter is not changed then.
            overwritten: New values of the weights that are overwritten with their gradient.

        Returns:
            Scalar bool: no gradient overflowed.
        """
        gradients = drop_overwritten(gradients, self._trainable)
        local = [_first(self._strategy, gradient) for gradient in gradients]
        finite = self.scaler.all_finite(local)

        compiles = is_compiled(self._optimizer, self._updated, local, self._compiles)

        def update() -> None:
            with self._ema.held_back(), fused(self._optimizer):
                if compiles:
                    captured = compiled(self._on_replicas)(local, step)
                else:
                    captured = self._on_replicas(gradients, step)
            for variable, value in zip(self._overwritten, overwritten, strict=True):
                variable.value.assign(_first(self._strategy, value))
            for variable, value in zip(self._captured, captured, strict=True):
                variable.value.assign(value)
            self._ema.update(self.iterations.value if step is None else step + 1)

        if self.scaler.dynamic:
            tf.cond(finite, update, lambda: None)
            self.scaler.update(finite)
        else:
            update()
        return finite

    def _on_replicas(self, gradients: Any, step: tf.Tensor | None) -> list[tf.Tensor]:
        """Applies the gradients; returns what the optimizer assigned in replica context."""
        captured = self._strategy.run(self._in_replica, args=(gradients, step))
        return [_first(self._strategy, value) for value in captured]

    def _in_replica(self, gradients: Any, step: tf.Tensor | None) -> list[tf.Tensor]:
        """Applies the gradients; returns what the optimizer assigned in replica context."""
        given = [] if step is None else [(self.iterations, step)]
        real = tf.distribute.get_replica_context()
        gradients = self.scaler.unscale(gradients)
        reading = (lambda: _Reading(given, initialize_variables=False)) if given else nullcontext
        with ReducedView(real, reading), keras.StatelessScope(given) as scope:
            self._optimizer.apply(gradients, self._updated)
        candidates = [*self._optimizer.variables, *self._trainable]
        self._captured = [
            variable
            for variable in candidates
            if scope.get_current_value(variable) is not None
            and not (given and variable is self.iterations)
        ]
        return [tf.cast(scope.get_current_value(v), v.dtype) for v in self._captured]


class _Reading(keras.StatelessScope):
    """Gives some variables a value to read; what is assigned is assigned as outside of it."""

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        variable, value = update
        assign_directly(variable, value)


class Update:
    """The last part of a step: updates the weights, now or after more batches.

    This one leaves them as they are, which is right where the step itself has updated them. What a
    subclass does not override is right where every batch is an update.
    """

    @property
    def variables(self) -> list[tf.Variable]:
        """What training depends on between updates, as well as the model and its optimizer."""
        return []

    def loss_scale(self) -> tf.Tensor | None:
        """Returns the factor of the loss for the gradient; None for no factor."""
        return None

    def take(self, gradients: list[Any], piece: Slice) -> list[Any]:
        """Takes a batch's gradients, in replica context.

        Args:
            gradients: Of the replica's slice, times its weight and the loss scale.
            piece: That slice.

        Returns:
            Those that are to be reduced over the replicas with this batch.
        """
        del piece
        return gradients

    def apply(self, reduced: Reduced) -> None:
        """Updates the weights, if this batch ends an update; in cross-replica context."""

    def finish(self) -> None:
        """Updates the weights with the batches taken since the last update. Not in a graph."""

    def calls_to_end(self, count: int) -> int:
        """Returns how many of the next `count` batches to run in one call that ends an update.

        All of them if none of them ends one.
        """
        return count

    def is_complete(self) -> bool:
        """Returns whether every batch taken so far is in the weights."""
        return True


class PlainUpdate(Update):
    """Every batch is an update.

    Args:
        optimize: Updates the weights.
    """

    def __init__(self, optimize: OptimizerUpdate) -> None:
        self._optimize = optimize

    @override
    def loss_scale(self) -> tf.Tensor | None:
        return self._optimize.scaler.value()

    @override
    def apply(self, reduced: Reduced) -> None:
        self._optimize(reduced.gradients, overwritten=reduced.updated)


class UpdateWithinStep(Update):
    """Assigns the weights that the step's own optimizers have computed.

    Args:
        step: That step.
        strategy: The strategy the weights were made under.
    """

    def __init__(self, step: ReplicaStep, strategy: tf.distribute.Strategy) -> None:
        self._step = step
        self._strategy = strategy

    @override
    def apply(self, reduced: Reduced) -> None:
        """Assigns weights and optimizers' variables."""
        for variable, value in zip(self._step.updated, reduced.updated, strict=True):
            variable.value.assign(_first(self._strategy, value))


class PeriodicUpdate(Update):
    """An update of the weights every few batches, which also ends an epoch.

    Args:
        optimize: Updates the weights.
        batches: Batches per update.
        update: Makes the update that is due, in cross-replica context.
        compiled: Compiles a Python function to a graph function.
    """

    def __init__(
        self,
        optimize: OptimizerUpdate,
        batches: int,
        update: Callable[[], None],
        compiled: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        self._optimize = optimize
        self._batches = batches
        self._update = update
        self._taken = own_variable(0)
        self._finish = compiled(update)

    @override
    def loss_scale(self) -> tf.Tensor | None:
        return self._optimize.scaler.value()

    @override
    def finish(self) -> None:
        if not self.is_complete():
            self._finish()

    @override
    def calls_to_end(self, count: int) -> int:
        taken = int(self._taken)
        to_end = (taken + count) // self._batches * self._batches - taken
        return to_end if to_end > 0 else count

    @override
    def is_complete(self) -> bool:
        return int(self._taken) == 0

    def _count(self) -> None:
        """Counts a batch, and makes the update if the batch is the last of it; in a step."""
        self._taken.assign_add(1)
        tf.cond(self._taken >= self._batches, self._update, lambda: None)


def _first(strategy: tf.distribute.Strategy, value: Any) -> Any:
    """Returns the first replica's value, where all replicas have the same."""
    return strategy.experimental_local_results(value)[0]
