"""Runs a model's own `train_step`, with the gradients of all replicas.

The gradients of a step that calls its one optimizer once are reduced after the step.
Where a step has several optimizers, as a GAN's, or reads weights that it has updated, an update
cannot wait for the end of the step. Each replica computes it, from gradients reduced over all of
them: all compute the same, and the optimizers' results are assigned to the variables after the
step. See https://keras.io/guides/custom_train_step_in_tensorflow/ (the GAN at its end).
"""

from __future__ import annotations

import abc
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.replica_context import real_context
from tfdist.collectives.transport import Transport
from tfdist.errors import ConfigError
from tfdist.keras_internals import assigning_directly, trained_by
from tfdist.training.model.inspection import ModelVariables, all_optimizers
from tfdist.training.step.gradients import divide, multiply
from tfdist.training.step.patches.capture import CapturedGradients, intercept_apply
from tfdist.training.step.replica import TRAIN, ReplicaOutput, ReplicaStep, Totals
from tfdist.training.step.slicing import Slice
from tfdist.training.step.stateless_scope import StepScope


class OwnStep(ReplicaStep):
    """A training step made by the model's own `train_step`."""

    def _run(self, piece: Slice, totals: Totals) -> tuple[StepScope, Any]:
        """Runs the model's `train_step` on a slice; returns its scope, which has ended, and logs.

        The step takes gradients with respect to the variables themselves.
        """
        originals = [variable.value for variable in self.variables.trainable]
        real = real_context()
        scope = StepScope(self.variables, real, totals=totals, trainable=originals)
        losses = self._losses.of(piece.data, piece.count, training=True, sums=self.sums[TRAIN])
        with self._view(real, piece.count), scope, losses:
            try:
                return scope, self.model.train_step(piece.data)
            except AttributeError as error:
                # A tape finds no gradient by a weight that is not a variable any more.
                problem = self._lost_weight(scope)
                if problem is not None and "handle" in str(error):
                    raise problem from error
                raise

    @abc.abstractmethod
    def _lost_weight(self, scope: StepScope) -> ConfigError | None:
        """Returns the error of a step that replaces weights while tapes need them, if it does."""


class SingleOptimizerStep(OwnStep):
    """A training step made by a `train_step` that calls its one optimizer once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._captured = CapturedGradients(self.model)

    @override
    @contextlib.contextmanager
    def intercepting(self) -> Iterator[None]:
        with super().intercepting(), self._captured:
            yield

    @override
    def _train(self, piece: Slice, loss_scale: tf.Tensor | None, totals: Totals) -> ReplicaOutput:
        """Computes gradients, statistics and metrics of this replica's slice.

        Raises:
            ConfigError: The step assigns weights, or does not call the optimizer once.
        """
        self._captured.start()
        scope, logs = self._run(piece, totals)
        problem = self._lost_weight(scope)
        if problem is not None:
            raise problem
        gradients, scaled_by = self._captured.take(self.variables.trainable)
        factor = piece.weight if loss_scale is None else piece.weight * loss_scale / scaled_by
        if self.sums[TRAIN].loss:
            name = f"{type(self.model).__name__}.train_step"
            self._losses.refuse_accumulation(name, "has a gradient that is a sum over rows")
            factor *= self._losses.whole_per_slice()
        gradients = [multiply(gradient, factor) for gradient in gradients]
        state = self._changed_state(scope, piece, TRAIN)
        grown, extra = self._metrics_and_logs(scope, logs, piece, training=True)
        return ReplicaOutput(gradients, grown, state, extra, None)

    @override
    def _lost_weight(self, scope: StepScope) -> ConfigError | None:
        if not scope.replaced:
            return None
        return ConfigError(
            f"{type(self.model).__name__}.train_step: assigns trainable weights before "
            f"optimizer.apply ({scope.replaced[0][0].path}, in the step or a layer), so no "
            "gradient can be taken by them; assign them after it, or override compute_loss "
            "instead of train_step"
        )


class MultiOptimizerStep(OwnStep):
    """A training step made by a `train_step` that updates the weights itself.

    Args:
        model: The model.
        variables: Its variables.
        transport: Sums over the replicas.
        weights_add_up: Whether the slices' weights add up to one over the replicas.
        **options: As for `ReplicaStep`.
    """

    def __init__(
        self,
        model: keras.Model,
        variables: ModelVariables,
        transport: Transport,
        *,
        weights_add_up: bool,
        **options: Any,
    ) -> None:
        super().__init__(model, variables, transport, **options)
        self._weights_add_up = weights_add_up
        self._name = f"{type(model).__name__}.train_step"
        self._optimizers = all_optimizers(model)
        self._of_thread = threading.local()

    @override
    @contextlib.contextmanager
    def intercepting(self) -> Iterator[None]:
        with super().intercepting(), intercept_apply(self._optimizers, self._apply):
            yield

    @override
    def _train(self, piece: Slice, loss_scale: tf.Tensor | None, totals: Totals) -> ReplicaOutput:
        """Computes new weights, statistics and metrics; each update is of reduced gradients.

        Raises:
            ConfigError: The step updates a weight twice, or none at all.
        """
        del loss_scale  # Loss scaling is rejected with several optimizers.
        self._of_thread.weight = piece.weight
        updated = self._of_thread.updated = set[int]()
        scope, logs = self._run(piece, totals)
        if not updated:
            raise ConfigError(
                f"{self._name}: never calls apply or apply_gradients of an optimizer of the "
                "model's, so there is nothing to train with; call it"
            )
        assigned = self._assigned(scope)
        for variable, value in assigned:
            scope.account_for(variable, value)
        self.updated = [variable for variable, _ in assigned]
        self.changed[TRAIN], state = scope.changed_state(piece.count)
        grown, extra = self._metrics_and_logs(scope, logs, piece, training=True)
        return ReplicaOutput([], grown, state, extra, None, [value for _, value in assigned])

    @override
    def _lost_weight(self, scope: StepScope) -> ConfigError | None:
        return self._twice() if self._of_thread.updated else None

    def _assigned(self, scope: keras.StatelessScope) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Returns the optimizers' assignments in the scope, which has ended, as pairs."""
        found = {}
        for optimizer in self._optimizers:
            if not optimizer.built:
                continue
            updated = self._of_thread.updated
            weights = [v for v in trained_by(optimizer) if id(v) in updated]
            for variable in (*optimizer.variables, *weights):
                value = scope.get_current_value(variable)
                if value is not None and value is not variable.value:
                    found[id(variable)] = (variable, tf.cast(value, variable.dtype))
        return list(found.values())

    def _apply(
        self, optimizer: keras.optimizers.Optimizer, grads: Any, trainable_variables: Any = None
    ) -> None:
        variables = list(
            trained_by(optimizer) if trainable_variables is None else trainable_variables
        )
        if any(id(variable) in self._of_thread.updated for variable in variables):
            raise self._twice()
        self._of_thread.updated |= {id(variable) for variable in variables}
        dense = [None if g is None else tf.convert_to_tensor(g) for g in grads]
        reduced = self._reduce(dense)  # Another replica may have its turn meanwhile.
        with assigning_directly(optimizer):
            type(optimizer).apply(optimizer, reduced, variables)

    def _reduce(self, gradients: list[Any]) -> list[Any]:
        """Returns the global batch's gradients, in the middle of a step."""
        weight = self._of_thread.weight
        gradients = [multiply(gradient, weight) for gradient in gradients]
        if self._weights_add_up:
            return self._transport.sum_gradients(gradients)
        (total,) = self._transport.sum_small([weight])
        return [divide(gradient, total) for gradient in self._transport.sum_gradients(gradients)]

    def _twice(self) -> ConfigError:
        return ConfigError(
            f"{self._name}: updates the same weights more than once a step; allowed: once a step "
            "for each weight; make each round a step (more batches)"
        )
