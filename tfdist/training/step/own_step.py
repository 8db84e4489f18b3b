"""Runs a model's own `train_step`, and keeps its gradients to be reduced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives.replica_context import real_context
from tfdist.errors import ConfigError
from tfdist.training.step.capture import CapturedGradients
from tfdist.training.step.gradients import multiply
from tfdist.training.step.replica import TRAIN, ReplicaOutput, ReplicaStep
from tfdist.training.step.slicing import Slice
from tfdist.training.step.stateless_scope import StepScope


class OwnStep(ReplicaStep):
    """A training step made by the model's own `train_step`, which calls its one optimizer once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._captured = CapturedGradients(self.model)

    @contextlib.contextmanager
    def intercepting(self) -> Iterator[None]:
        """Returns a context for `strategy.run`, in which Keras' calls reach this step."""
        with super().intercepting(), self._captured:
            yield

    def train(
        self,
        piece: Slice,
        *,
        loss_scale: tf.Tensor | None,
        totals: Sequence[tf.Tensor] | None = None,
    ) -> ReplicaOutput:
        """Computes gradients, statistics and metrics of this replica's slice.

        Raises:
            ConfigError: The step assigns weights, or does not call the optimizer once.
        """
        real = real_context()
        self._begin(piece)
        self._captured.start()
        # The step takes gradients with respect to the variables themselves.
        originals = [variable.value for variable in self.variables.trainable]
        scope = StepScope(self.variables, real, totals=totals, trainable=originals)
        with self._view(real, piece.count), scope, self._losses.of(piece, training=True):
            try:
                logs = self.model.train_step(piece.data)
            except AttributeError as error:
                # A tape cannot tell the gradient by a weight that is no variable any more.
                if scope.replaced and "handle" in str(error):
                    raise self._assigns(scope) from error
                raise
        if scope.replaced:
            raise self._assigns(scope)
        gradients, scaled_by = self._captured.take(self.variables.trainable)
        factor = piece.weight if loss_scale is None else piece.weight * loss_scale / scaled_by
        gradients = [multiply(gradient, factor) for gradient in gradients]
        state = self._changed_state(scope, piece, TRAIN)
        grown, extra = self._metrics_and_logs(scope, logs, piece, training=True)
        return ReplicaOutput(gradients, grown, state, extra, None)

    def _assigns(self, scope: StepScope) -> ConfigError:
        return ConfigError(
            f"{type(self.model).__name__}.train_step: assigns trainable weights before "
            f"optimizer.apply ({scope.replaced[0][0].path}, in the step or a layer), so no "
            "gradient can be taken by them; assign them after it, or override compute_loss "
            "instead of train_step"
        )
