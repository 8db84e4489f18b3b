"""What one replica computes in a step, as Keras would on one device.

Keras consults `tf.distribute` in many places: losses are divided by the number
of replicas, statistics and metrics are assigned in replica context, the
optimizer sums the gradients. Here a replica's computation runs as a pure
function instead. `keras.StatelessScope` holds every variable's value, so nothing
is assigned; `OneReplicaView` makes Keras see the default strategy, so nothing is
scaled; and what comes out (gradients, new statistics, additions to the metrics)
is reduced over the replicas in one place, `tfdist.training.reduction`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.training.batch import rows_of
from tfdist.training.recorder import Recorder, flat_metrics, overrides
from tfdist.training.sparse import multiply
from tfdist.training.updates_within import Reduce
from tfdist.training.views import OneReplicaView, inside

# Replicas draw different dropout masks: this odd multiple of the replica's number is added to
# the seed, so that no two of up to 2**31 replicas share one.
_SEED_STRIDE = 0x9E3779B1
_SEED_NAME = "seed_generator_state"

_Values = dict[int, tf.Tensor]


class ReplicaOutput(NamedTuple):
    """What a replica's step gives, before anything is reduced.

    Attributes:
        gradients: One for each trainable variable, None where there is none.
        metrics: What each metric variable grew by; its new value, where `totals` were given.
        state: New values of the variables that the model itself changed, in the order of
            `ReplicaStep.changed`.
        logs: Scalars that an overridden `train_step` returned beside the metrics.
        outputs: The predictions (and targets), where metrics are to be updated by all
            replicas together.
        updated: New values of the variables that the step's own optimizers updated, in the
            order of `ReplicaStep.updated`: the same on every replica.
    """

    gradients: list[Any]
    metrics: list[tf.Tensor]
    state: list[tf.Tensor]
    logs: dict[str, tf.Tensor]
    outputs: Any
    updated: list[tf.Tensor] = []


class ReplicaStep:
    """The pure functions of one model: a training step, a test step, predictions.

    Args:
        model: A built and compiled Keras model.
        gather_metrics: Whether compiled metrics are left out of the step, because they must see
            the outputs of all replicas together (see `tfdist.training.metrics`).
    """

    def __init__(self, model: keras.Model, *, gather_metrics: bool = False) -> None:
        self.model = model
        self.gather_metrics = gather_metrics
        self.trainable = list(model.trainable_variables)
        self.state = list(model.non_trainable_variables)
        self.metrics = list(model.metrics_variables)
        self.recorder = Recorder(model)
        self.within = self.recorder.within
        # Known once the training step was traced.
        self.changed: list[keras.Variable] = []
        self.updated: list[keras.Variable] = []
        self._call_takes_training = "training" in inspect.signature(model.call).parameters
        self._loss_takes_training = "training" in inspect.signature(model.compute_loss).parameters

    def train(
        self,
        data: Any,
        *,
        weight: tf.Tensor,
        count: tf.Tensor,
        loss_scale: tf.Tensor | None,
        sample_factor: Callable[[Any], Any] | None = None,
        totals: Sequence[tf.Tensor] | None = None,
        reduce: Reduce | None = None,
    ) -> ReplicaOutput:
        """Computes gradients, statistics and metrics of this replica's slice.

        Args:
            data: The slice: x, (x, y) or (x, y, sample_weight). A slice of no examples is one
                row that counts for nothing, as not every operation works without rows.
            weight: Scalar float32, what the slice counts for in the loss: its share of the
                global batch.
            count: Scalar int32, how many examples the slice has; 0 if `data` stands in.
            loss_scale: Scalar float32 by which the loss is multiplied before the gradient is
                taken, or None.
            sample_factor: Gives the factor on the sample weights that makes a loss that is not
                a plain mean over examples add up over the replicas.
            totals: What the metrics start from; from nothing if absent.
            reduce: Gives the global batch's gradients, for a step with several optimizers.

        Returns:
            The gradients are of `loss * weight * loss_scale`.
        """
        real = tf.distribute.get_replica_context()
        values = [tf.convert_to_tensor(variable.value) for variable in self.trainable]
        self.recorder.start(weight)
        updated: list[tf.Tensor] = []
        if self.within.active and reduce is not None:
            originals = [variable.value for variable in self.trainable]
            scope, initial = self._scope(real, totals, originals)

            def reduced(gradients: list[Any]) -> list[Any]:
                with inside(real):
                    return reduce([multiply(gradient, weight) for gradient in gradients])

            with OneReplicaView(real, count), scope, self.within.step(reduced):
                logs = self.model.train_step(data)
            found = self.within.values(scope)
            self.updated = [variable for variable, _ in found.values()]
            updated = [value for _, value in found.values()]
            initial |= {key: value for key, (_, value) in found.items()}  # They are accounted for.
            gradients: list[Any] = []
            outputs = None
        elif overrides(self.model, "train_step"):
            # The step takes gradients with respect to the variables themselves.
            originals = [variable.value for variable in self.trainable]
            scope, initial = self._scope(real, totals, originals)
            with OneReplicaView(real, count), scope:
                logs = self.model.train_step(data)
            if scope.replaced:
                raise ConfigError(
                    f"{type(self.model).__name__}.train_step: a layer assigns trainable weights "
                    "inside the step; override compute_loss instead of train_step"
                )
            gradients, scaled_by = self.recorder.take(self.trainable)
            factor = weight if loss_scale is None else weight * loss_scale / scaled_by
            gradients = [multiply(gradient, factor) for gradient in gradients]
            outputs = None
        else:
            with OneReplicaView(real, count), tf.GradientTape() as tape:
                tape.watch(values)
                scope, initial = self._scope(real, totals, values, tape)
                with scope:
                    loss, outputs = self._forward(data, count, sample_factor, training=True)
                    logs = {}
                    scaled = loss * tf.cast(weight, loss.dtype)
                    if loss_scale is not None:
                        scaled = scaled * tf.cast(loss_scale, loss.dtype)
            gradients = _gradients(tape, scaled, values, self.trainable, scope)
        self.changed, state = self._changed_state(scope, initial, real, count)
        grown, extra = self._grown_metrics(scope, initial, logs, count)
        return ReplicaOutput(gradients, grown, state, extra, outputs, updated)

    def test(
        self,
        data: Any,
        *,
        weight: tf.Tensor,
        count: tf.Tensor,
        sample_factor: Callable[[Any], Any] | None = None,
        totals: Sequence[tf.Tensor] | None = None,
    ) -> ReplicaOutput:
        """Computes the metrics of this replica's slice; arguments as for `train`."""
        real = tf.distribute.get_replica_context()
        self.recorder.start(weight)
        scope, initial = self._scope(real, totals)
        outputs = None
        with OneReplicaView(real, count), scope:
            if overrides(self.model, "test_step"):
                logs = self.model.test_step(data)
            else:
                _, outputs = self._forward(data, count, sample_factor, training=False)
                logs = {}
        grown, extra = self._grown_metrics(scope, initial, logs, count)
        return ReplicaOutput([], grown, [], extra, outputs)

    def predict(self, data: Any) -> Any:
        """Computes the predictions for this replica's slice."""
        real = tf.distribute.get_replica_context()
        scope, _ = self._scope(real)
        with OneReplicaView(real, rows_of(data)), scope:
            if overrides(self.model, "predict_step"):
                return self.model.predict_step(data)
            x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
            return self._call(x, training=False)

    def update_metrics_together(self, totals: Sequence[tf.Tensor], outputs: Any) -> list[tf.Tensor]:
        """Updates metrics with the outputs of all replicas; returns the new totals."""
        real = tf.distribute.get_replica_context()
        x, y, y_pred, sample_weight = outputs
        mapping = list(zip(self.metrics, totals, strict=True))
        view = OneReplicaView(real, rows_of(y_pred))
        with view, keras.StatelessScope(mapping) as scope:
            self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
            return [scope.get_current_value(variable) for variable in self.metrics]

    def _call(self, x: Any, training: bool) -> Any:
        if self._call_takes_training:
            return self.model(x, training=training)
        return self.model(x)

    def _forward(
        self,
        data: Any,
        count: tf.Tensor,
        sample_factor: Callable[[Any], Any] | None,
        training: bool,
    ) -> tuple[tf.Tensor, Any]:
        """Forward pass, loss and metrics, as in Keras' own `train_step` and `test_step`."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self._call(x, training)
        loss_weight = sample_weight
        if sample_factor is not None:
            factor = sample_factor(y_pred)
            if factor is not None:
                loss_weight = _weighted(y_pred, sample_weight, factor)
        arguments = {"training": training} if self._loss_takes_training else {}
        loss = self.model.compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=loss_weight, **arguments
        )
        loss = tf.cast(loss, keras.config.floatx())
        for metric in self.model.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=tf.cast(count, loss.dtype))
        if self.gather_metrics:
            # Keras' own metrics ignore the inputs: they need not travel.
            seen = x if overrides(self.model, "compute_metrics") else None
            return loss, (seen, y, y_pred, sample_weight)
        self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return loss, None

    def _scope(
        self,
        real: tf.distribute.ReplicaContext,
        totals: Sequence[tf.Tensor] | None = None,
        trainable: Sequence[Any] | None = None,
        tape: tf.GradientTape | None = None,
    ) -> tuple[_Scope, _Values]:
        """A scope in which variables have their values and metrics start from zero or `totals`.

        Returns:
            The scope, and what the variables that a step may change begin with.
        """
        mapping = [(v, _replica_value(v, real)) for v in self.state]
        if totals is None:
            mapping += [(v, tf.zeros(v.shape, v.dtype)) for v in self.metrics]
        else:
            mapping += [(v, tf.cast(t, v.dtype)) for v, t in zip(self.metrics, totals, strict=True)]
        if trainable is None:
            trainable = [tf.convert_to_tensor(v.value) for v in self.trainable]
        scope = _Scope(mapping, zip(self.trainable, trainable, strict=True), tape)
        variables = (*self.state, *self.trainable, *self.metrics)
        return scope, {id(v): scope.get_current_value(v) for v in variables}

    def _changed_state(
        self,
        scope: keras.StatelessScope,
        initial: _Values,
        real: tf.distribute.ReplicaContext,
        count: tf.Tensor,
    ) -> tuple[list[keras.Variable], list[tf.Tensor]]:
        variables, values = [], []
        for variable in (*self.state, *self.trainable):
            value = scope.get_current_value(variable)
            old = initial[id(variable)]
            if value is old:
                continue
            value = tf.cast(value, old.dtype)
            if is_seed(variable):
                value = value - _seed_offset(variable, real)
            elif old.dtype.is_floating:
                # The statistics of a row that stands in count for nothing.
                value = tf.where(count > 0, value, old)
            variables.append(variable)
            values.append(value)
        return variables, values

    def _grown_metrics(
        self,
        scope: keras.StatelessScope,
        initial: _Values,
        logs: Any,
        count: tf.Tensor,
    ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        """What the metrics have become, and the logs that no metric accounts for."""
        values = []
        touched = set()
        for variable in self.metrics:
            value, old = scope.get_current_value(variable), initial[id(variable)]
            if value is not old:
                touched.add(id(variable))
                value = tf.where(count > 0, tf.cast(value, variable.dtype), old)
            values.append(value)
        named = {
            metric.name
            for metric in flat_metrics(self.model)
            if all(id(variable) in touched for variable in metric.variables)
        }
        extra = {}
        if isinstance(logs, dict):
            for name, value in logs.items():
                # A tracker that the step left alone says nothing; what it returned does.
                free = name not in named and (name == "loss" or not _is_metric(self.model, name))
                if free and _is_scalar(value):
                    extra[name] = tf.cast(value, tf.float32)
        return values, extra


class _Scope(keras.StatelessScope):
    """A stateless scope in which a trainable variable may be assigned, as a variable may.

    What a layer assigns (a spectral norm, say) is where its gradient starts: none flows through
    the assignment, as none does through that of a variable.

    Args:
        mapping: Variables and their values.
        trainable: The trainable ones and theirs, to be used as they are: a tape watches them.
        tape: That tape.
    """

    def __init__(
        self,
        mapping: Sequence[tuple[keras.Variable, Any]],
        trainable: Iterable[tuple[keras.Variable, Any]],
        tape: tf.GradientTape | None,
    ) -> None:
        # Without collecting, the losses that layers add would be dropped.
        super().__init__(state_mapping=mapping, collect_losses=True)
        self._trainable: set[int] = set()
        self._tape = tape
        self.replaced: list[tuple[keras.Variable, tf.Tensor]] = []
        for variable, value in trainable:
            super().add_update((variable, value))
            self._trainable.add(id(variable))

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Takes a new value of a variable."""
        variable, value = update
        if id(variable) in self._trainable:
            value = tf.stop_gradient(tf.cast(value, variable.dtype))
            if self._tape is not None:
                self._tape.watch(value)
            self.replaced.append((variable, value))
        super().add_update((variable, value))


def _gradients(
    tape: tf.GradientTape,
    loss: tf.Tensor,
    values: list[tf.Tensor],
    variables: Sequence[keras.Variable],
    scope: _Scope,
) -> list[Any]:
    """Gradients by the values of the variables, and by those assigned in the step."""
    later = [value for _, value in scope.replaced]
    gradients = tape.gradient(loss, [*values, *later])
    own, more = gradients[: len(values)], gradients[len(values) :]
    position = {id(variable): i for i, variable in enumerate(variables)}
    for (variable, _), gradient in zip(scope.replaced, more, strict=True):
        i = position[id(variable)]
        if gradient is not None:
            gradient = tf.convert_to_tensor(gradient)
            own[i] = gradient if own[i] is None else tf.convert_to_tensor(own[i]) + gradient
    return own


def is_seed(variable: keras.Variable) -> bool:
    """Says whether the variable is the state of a `keras.random.SeedGenerator`."""
    return variable.name == _SEED_NAME and tuple(variable.shape) == (2,)


def _seed_offset(variable: keras.Variable, real: tf.distribute.ReplicaContext) -> tf.Tensor:
    replica = tf.cast(real.replica_id_in_sync_group, variable.dtype)
    return tf.stack([replica * _SEED_STRIDE, tf.zeros_like(replica)])


def _replica_value(variable: keras.Variable, real: tf.distribute.ReplicaContext) -> tf.Tensor:
    value = tf.convert_to_tensor(variable.value)
    return value + _seed_offset(variable, real) if is_seed(variable) else value


def _is_metric(model: keras.Model, name: str) -> bool:
    return any(metric.name == name for metric in flat_metrics(model))


def _is_scalar(value: Any) -> bool:
    return tf.is_tensor(value) and value.shape.rank == 0


def _weighted(y_pred: Any, sample_weight: Any, factor: Any) -> Any:
    """Sample weights times a factor for each output (a tensor, or a structure like y_pred's)."""

    def one(given: Any, scale: tf.Tensor) -> tf.Tensor:
        if given is None:
            return scale
        given = tf.cast(given, scale.dtype)
        while given.shape.rank < scale.shape.rank:
            given = given[..., tf.newaxis]
        return given * scale[(..., *[tf.newaxis] * (given.shape.rank - scale.shape.rank))]

    if not isinstance(y_pred, (dict, list, tuple)):
        return one(sample_weight, factor)
    if isinstance(sample_weight, (dict, list, tuple)):
        return tf.nest.map_structure(one, sample_weight, factor)
    return tf.nest.map_structure(lambda f: one(sample_weight, f), factor)
