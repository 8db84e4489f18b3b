"""Computes one replica's part as Keras would on one device: the second part of a step.

Keras consults `tf.distribute` in many places: losses are divided by the number
of replicas, statistics and metrics are assigned in replica context, the
optimizer sums the gradients. Here a replica's computation runs as a pure
function instead. `StepScope` holds every variable's value, so nothing
is assigned; `OneReplicaView` makes Keras see the default strategy, so nothing is
scaled; and the results (gradients, new statistics, additions to the metrics)
are reduced over the replicas in one place, `tfdist.training.step.reduction`.
"""

from __future__ import annotations

import abc
import contextlib
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.replica_context import OneReplicaView, real_context
from tfdist.collectives.transport import Transport
from tfdist.keras_internals import attach_mask, mask_of
from tfdist.strategy.kinds import kind_of
from tfdist.training.input.batch import rows_of
from tfdist.training.model.inspection import (
    ModelVariables,
    compiled_optimizer,
    inner_optimizer,
    overrides,
)
from tfdist.training.step.gradients import split_overwritten, through_assignments
from tfdist.training.step.packing import values_of
from tfdist.training.step.patches.capture import ScalarMeans
from tfdist.training.step.patches.logs import Reported, ReturnedLogs
from tfdist.training.step.patches.loss_sums import Compares, LossSums
from tfdist.training.step.patches.row_sums import RowSums
from tfdist.training.step.patches.shared_state import SharedState
from tfdist.training.step.probes.loss_probe import compares_examples
from tfdist.training.step.probes.state_check import check_state
from tfdist.training.step.slicing import Slice
from tfdist.training.step.stateless_scope import StepScope

# The purposes of a step.
TRAIN, TEST, PREDICT = "train", "test", "predict"

# The initial values of the metrics in a step; None for zeros.
Totals = Sequence[tf.Tensor] | None


class ReplicaOutput(NamedTuple):
    """The results of a replica's step, before anything is reduced.

    Attributes:
        gradients: Of `loss * weight * loss_scale`: one for each trainable variable, None where
            there is none; no element where the step updates the weights itself.
        metrics: The increment of each metric variable; its new value, where `totals` were given.
        state: New values of the variables that the model itself changed, in the order of
            `ReplicaStep.changed`, for that kind of step.
        logs: Scalars that an overridden step returned as well as the metrics.
        outputs: The predictions (and targets), where metrics are to be updated by all
            replicas together.
        updated: New values of the variables that the step's own optimizers updated, in the
            order of `ReplicaStep.updated`, or else of those that are overwritten with their
            gradient: the same on every replica.
    """

    gradients: list[Any]
    metrics: list[tf.Tensor]
    state: list[tf.Tensor]
    logs: dict[str, tf.Tensor]
    outputs: Any
    updated: list[tf.Tensor] = []


class ReplicaStep(abc.ABC):
    """The pure functions of one model: a training step, a test step, predictions.

    Args:
        model: A built and compiled Keras model.
        variables: Its variables.
        transport: Sums over the replicas, for layers and losses that need it within a step.
        gathers_metrics: Whether compiled metrics are left out of the step, because they must see
            the outputs of all replicas together (see `tfdist.training.step.metrics`).
        accumulates: Whether several batches make an update.
        strategy: The strategy that the step runs under; by default the model's.
        compares: Returns whether a loss compares the examples of a batch.
        read: Returns the values of variables.

    Attributes:
        changed: The variables that the model itself changes, by purpose (`TRAIN`, `TEST` or
            `PREDICT`); known once such a step was traced.
        updated: The variables that the step's own optimizers update; known after tracing too.
        sums: What the model's own step sums over rows, by purpose.
        reported: The logs that an overridden step returns, for training (True) and test steps
            (False); known after tracing too. None for all metrics.
    """

    def __init__(
        self,
        model: keras.Model,
        variables: ModelVariables,
        transport: Transport,
        *,
        gathers_metrics: bool = False,
        accumulates: bool = False,
        strategy: tf.distribute.Strategy | None = None,
        compares: Compares = compares_examples,
        read: Callable[[Sequence[keras.Variable]], list[tf.Tensor]] = values_of,
    ) -> None:
        self.model = model
        self._read = read
        self.variables = variables
        self.changed: dict[str, list[keras.Variable]] = {TRAIN: [], TEST: [], PREDICT: []}
        self.updated: list[keras.Variable] = []
        self.sums: dict[str, RowSums] = {TRAIN: RowSums(), TEST: RowSums(), PREDICT: RowSums()}
        strategy = strategy or model.distribute_strategy
        self._transport = transport
        self._gathers_metrics = gathers_metrics
        self._losses = LossSums(model, transport, accumulates=accumulates, compares=compares)
        self._scalar_means = ScalarMeans(model)
        alone = transport.replicas == 1 and kind_of(strategy).is_synchronous
        self._returned = ReturnedLogs(model, alone=alone)
        self.reported: dict[bool, Reported | None] = {True: None, False: None}
        self._for_metrics = threading.local()
        optimizer = compiled_optimizer(model)
        self._counts_updates = not accumulates and optimizer is inner_optimizer(optimizer)
        self._shared_state = SharedState(model)
        devices = strategy.extended.worker_devices if transport.replicas > 1 else ()
        self._shares = len(devices) > 1
        self._call_takes_training = "training" in inspect.signature(model.call).parameters
        self._loss_takes_training = "training" in inspect.signature(model.compute_loss).parameters

    @contextlib.contextmanager
    def intercepting(self) -> Iterator[None]:
        """Intercepts Keras' calls for this step; a context to enter around `strategy.run`.

        The replicas, which are threads that take turns, share optimizers and metrics.
        """
        with self._scalar_means, self._returned, self._losses:
            if self._shares:
                self._shared_state.record()
            yield

    def train(
        self, piece: Slice, *, loss_scale: tf.Tensor | None, totals: Totals = None
    ) -> ReplicaOutput:
        """Computes gradients, statistics and metrics of this replica's slice.

        Args:
            piece: The slice.
            loss_scale: Scalar float32 by which the loss is multiplied before the gradient is
                taken, or None.
            totals: The initial values of the metrics; None for zeros.

        Raises:
            ConfigError: The model's own step assigns weights, or does not use its optimizers as a
                step of several replicas must.
        """
        self._begin(piece, TRAIN)
        return self._train(piece, loss_scale, totals)

    @abc.abstractmethod
    def _train(self, piece: Slice, loss_scale: tf.Tensor | None, totals: Totals) -> ReplicaOutput:
        """Does what `train` promises, once the Python state of this replica's step is set."""

    def test(self, piece: Slice, *, totals: Totals = None) -> ReplicaOutput:
        """Computes the metrics of this replica's slice; arguments as for `train`."""
        real = real_context()
        self._begin(piece, TEST)
        scope = StepScope(self.variables, real, totals=totals, read=self._read)
        outputs = None
        losses = self._losses.of(piece.data, piece.count, training=False, sums=self.sums[TEST])
        with self._view(real, piece.count), scope, losses:
            if overrides(self.model, "test_step"):
                logs = self.model.test_step(piece.data)
            else:
                _, outputs, logs = self._forward(piece, scope, training=False)
        state = self._changed_state(scope, piece, TEST)
        grown, extra = self._metrics_and_logs(scope, logs, piece, training=False)
        return ReplicaOutput([], grown, state, extra, outputs)

    def predict(self, piece: Slice) -> tuple[Any, list[tf.Tensor]]:
        """Computes the predictions for this replica's slice.

        Returns:
            The predictions, and new values of what the model itself changed.
        """
        real = real_context()
        if self._shares:
            self._shared_state.begin()
        scope = StepScope(self.variables, real, read=self._read)
        with self._view(real, rows_of(piece.data)), scope:
            if overrides(self.model, "predict_step"):
                outputs = self.model.predict_step(piece.data)
            else:
                x, _, _ = keras.utils.unpack_x_y_sample_weight(piece.data)
                outputs = self._call(x, training=False)
        return outputs, self._changed_state(scope, piece, PREDICT)

    def assign_changed(self, doing: str, values: Iterable[Any]) -> None:
        """Assigns the variables that the model itself changed, in cross-replica context.

        Args:
            doing: The purpose of the step: `TRAIN`, `TEST` or `PREDICT`.
            values: Their values, in the order of `changed`.
        """
        for variable, value in zip(self.changed[doing], values, strict=True):
            variable.value.assign(value)

    def update_metrics_together(
        self, totals: Sequence[tf.Tensor], outputs: Any, updates: tf.Tensor | None = None
    ) -> list[tf.Tensor]:
        """Updates metrics with the outputs of all replicas; returns the new totals.

        Args:
            totals: The totals so far.
            outputs: As in `ReplicaOutput`.
            updates: The number of updates before the step, if it ran in another process.
        """
        x, y, y_pred, sample_weight, masks = outputs
        for output, mask in zip(tf.nest.flatten(y_pred), masks, strict=True):
            attach_mask(output, mask)
        updated = getattr(self._for_metrics, "updated", ())
        if updates is not None:
            updated = [self._after_update(updates)] if self._counts_updates else ()
        mapping = [*zip(self.variables.metrics, totals, strict=True), *updated]
        self._returned.start()
        with self._view(real_context(), rows_of(y_pred)), keras.StatelessScope(mapping) as scope:
            logs = self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
            grown = [scope.get_current_value(variable) for variable in self.variables.metrics]
        if overrides(self.model, "compute_metrics"):
            where = f"{type(self.model).__name__}.compute_metrics"
            reported = self._returned.results_only(logs, where)
            self.reported = {True: reported, False: reported}
        return grown

    def _after_update(self, updates: tf.Tensor | None) -> tuple[keras.Variable, tf.Tensor]:
        """Returns the optimizer's counter and its value after the current update."""
        iterations = self.model.optimizer.iterations
        before = iterations.value if updates is None else updates
        return iterations, tf.cast(before, iterations.dtype) + 1

    def _begin(self, piece: Slice, doing: str) -> None:
        """Begins this replica's step, with the Python state from before any replica's step."""
        if self._shares:
            self._shared_state.begin()
        self._for_metrics.updated = []
        self._scalar_means.start(piece.weight, self.sums[doing], self._losses.whole_per_slice)
        self._returned.start()

    def _view(self, real: tf.distribute.ReplicaContext, count: tf.Tensor) -> OneReplicaView:
        keep = self._shared_state.keep if self._shares else None
        return OneReplicaView(real, count, self._transport, keep)

    def _call(self, x: Any, training: bool) -> Any:
        if self._call_takes_training:
            return self.model(x, training=training)
        return self.model(x)

    def _forward(
        self, piece: Slice, scope: StepScope, *, training: bool
    ) -> tuple[tf.Tensor, Any, Any]:
        """Runs forward pass, loss and metrics, as Keras' own `train_step` and `test_step` do.

        Returns:
            The loss; what metrics are updated with, where the replicas do that together; and the
            logs that the model's own `compute_metrics` returned.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(piece.data)
        y_pred = self._call(x, training)
        arguments = {"training": training} if self._loss_takes_training else {}
        loss = self.model.compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, **arguments
        )
        loss = tf.cast(loss, keras.config.floatx())
        if self._sums(training).loss:
            loss = self._losses.summed(loss, "the loss of compute_loss")
        for metric in self.model.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=tf.cast(piece.count, loss.dtype))
        if self._losses.is_by_example(loss):
            loss = self._losses.summed(loss, "the loss")
        if training and self._counts_updates:
            # Keras' metrics come after the update, and may read a schedule's learning rate.
            updated = self._after_update(piece.updates)
            self._for_metrics.updated = [updated]
            scope.add_update(updated)
            scope.account_for(*updated)
        if self._gathers_metrics:
            # Keras' own metrics ignore the inputs: they need not be gathered.
            seen = x if overrides(self.model, "compute_metrics") else None
            masks = [mask_of(output) for output in tf.nest.flatten(y_pred)]
            return loss, (seen, y, y_pred, sample_weight, masks), {}
        logs = self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return loss, None, logs if overrides(self.model, "compute_metrics") else {}

    def _changed_state(self, scope: StepScope, piece: Slice, doing: str) -> list[tf.Tensor]:
        """Returns the new values of the variables that the model itself changed."""
        self.changed[doing], state = scope.changed_state(piece.count)
        if self._transport.replicas > 1:
            check_state(self.changed[doing], state, piece.data, self.model)
        return state

    def _metrics_and_logs(
        self, scope: StepScope, logs: Any, piece: Slice, *, training: bool
    ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        """Returns the metrics' values, and the logs that no metric accounts for."""
        values, touched = scope.metric_values(piece.count)
        method = "train_step" if training else "test_step"
        if not overrides(self.model, method):
            method = "compute_metrics"
        where = f"{type(self.model).__name__}.{method}"
        self.reported[training], extra = self._returned.sort(logs, touched, where)
        for name in set(extra) & set(self._sums(training).logs):
            extra[name] *= self._losses.whole_per_slice()
        return values, extra

    def _sums(self, training: bool) -> RowSums:
        return self.sums[TRAIN if training else TEST]


class KerasStep(ReplicaStep):
    """A training step like Keras' own `train_step`."""

    @override
    def _train(self, piece: Slice, loss_scale: tf.Tensor | None, totals: Totals) -> ReplicaOutput:
        real = real_context()
        values = self._read(self.variables.trainable)
        with (
            self._view(real, piece.count),
            self._losses.of(piece.data, piece.count, training=True, sums=self.sums[TRAIN]),
            tf.GradientTape() as tape,
        ):
            tape.watch(values)
            scope = StepScope(
                self.variables,
                real,
                totals=totals,
                trainable=values,
                tape=tape,
                read=self._read,
            )
            with scope:
                loss, outputs, returned = self._forward(piece, scope, training=True)
                scaled = loss * tf.cast(piece.weight, loss.dtype)
                if loss_scale is not None:
                    scaled = scaled * tf.cast(loss_scale, loss.dtype)
        gradients = through_assignments(
            tape, scaled, values, self.variables.trainable, scope.replaced
        )
        gradients, overwritten = split_overwritten(
            gradients, values, self.variables.trainable, piece.count, self._transport
        )
        state = self._changed_state(scope, piece, TRAIN)
        grown, logs = self._metrics_and_logs(scope, returned, piece, training=True)
        return ReplicaOutput(gradients, grown, state, logs, outputs, overwritten)
