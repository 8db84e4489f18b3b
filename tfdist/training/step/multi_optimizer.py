"""Runs a `train_step` that updates weights itself, with several optimizers, such as a GAN's.

Later parts of such a step read the weights that earlier parts updated, so an update cannot wait
for the end of the step. Each replica computes it, from gradients reduced over all of them: all
compute the same, and the optimizers' results are assigned to the variables after the step.
See https://keras.io/guides/custom_train_step_in_tensorflow/ (the GAN at its end).
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.replica_context import real_context
from tfdist.collectives.transport import Transport
from tfdist.errors import ConfigError
from tfdist.training.model.inspection import (
    ModelVariables,
    all_optimizers,
    has_several_optimizers,
    other_optimizers,
)
from tfdist.training.step.gradients import divide, multiply
from tfdist.training.step.replica import TRAIN, ReplicaOutput, ReplicaStep
from tfdist.training.step.slicing import Slice
from tfdist.training.step.stateless_scope import StepScope

# Of TensorFlow's optimizers these go around Keras' variables, to those of the strategy; those
# of Keras' base class assign to the variables, and so to the scope that holds their values.
_BASE: Any = next(c for c in keras.optimizers.Optimizer.__mro__ if c.__name__ == "BaseOptimizer")
_PLAIN = (
    "assign",
    "assign_add",
    "assign_sub",
    "_apply_weight_decay",
    "_backend_update_step",
    "_var_key",
)


class MultiOptimizerStep(ReplicaStep):
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

    @contextlib.contextmanager
    def intercepting(self) -> Iterator[None]:
        """Returns a context for `strategy.run`, in which Keras' calls reach this step."""
        with super().intercepting(), standing_in(self._optimizers, self._apply):
            yield

    def train(
        self,
        piece: Slice,
        *,
        loss_scale: tf.Tensor | None,
        totals: Sequence[tf.Tensor] | None = None,
    ) -> ReplicaOutput:
        """Computes new weights, statistics and metrics; each update is of reduced gradients.

        Raises:
            ConfigError: The step updates a weight twice, or none at all.
        """
        del loss_scale  # Loss scaling is rejected with several optimizers.
        real = real_context()
        self._begin(piece)
        self._of_thread.weight = piece.weight
        updated = self._of_thread.updated = set[int]()
        originals = [variable.value for variable in self.variables.trainable]
        scope = StepScope(self.variables, real, totals=totals, trainable=originals)
        with self._view(real, piece.count), scope, self._losses.of(piece, training=True):
            try:
                logs = self.model.train_step(piece.data)
            except AttributeError as error:
                # A tape cannot tell the gradient by a weight that is no variable any more.
                if updated and "handle" in str(error):
                    raise self._twice() from error
                raise
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

    def _assigned(self, scope: keras.StatelessScope) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Returns the optimizers' assignments in the scope, which has ended, as pairs."""
        found = {}
        for optimizer in self._optimizers:
            if not optimizer.built:
                continue
            updated = self._of_thread.updated
            weights = [v for v in optimizer._trainable_variables if id(v) in updated]
            for variable in (*optimizer.variables, *weights):
                value = scope.get_current_value(variable)
                if value is not None and value is not variable.value:
                    found[id(variable)] = (variable, tf.cast(value, variable.dtype))
        return list(found.values())

    def _apply(
        self, optimizer: keras.optimizers.Optimizer, grads: Any, trainable_variables: Any = None
    ) -> None:
        variables = list(
            optimizer._trainable_variables if trainable_variables is None else trainable_variables
        )
        if any(id(variable) in self._of_thread.updated for variable in variables):
            raise self._twice()
        self._of_thread.updated |= {id(variable) for variable in variables}
        dense = [None if g is None else tf.convert_to_tensor(g) for g in grads]
        reduced = self._reduce(dense)  # Another replica may have its turn meanwhile.
        with _plain(optimizer):
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
            "for each weight; make the rounds steps of their own (more batches)"
        )


@contextlib.contextmanager
def standing_in(
    optimizers: list[keras.optimizers.Optimizer], function: Callable[..., None]
) -> Iterator[None]:
    """Makes `apply` of the optimizers call a function, with the optimizer as first argument."""
    for optimizer in optimizers:
        optimizer.apply = functools.partial(function, optimizer)
    try:
        yield
    finally:
        for optimizer in optimizers:
            del optimizer.apply


@contextlib.contextmanager
def _plain(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Makes an optimizer assign to Keras' variables directly, and use them as its keys."""
    for name in _PLAIN:
        setattr(optimizer, name, types.MethodType(getattr(_BASE, name), optimizer))
    known = optimizer._trainable_variables_indices
    optimizer._trainable_variables_indices = {
        optimizer._var_key(variable): index
        for index, variable in enumerate(optimizer._trainable_variables)
    }
    try:
        yield
    finally:
        optimizer._trainable_variables_indices = known
        for name in _PLAIN:
            delattr(optimizer, name)


def build_optimizers(model: keras.Model, strategy: tf.distribute.Strategy, data: Any) -> None:
    """Builds the optimizers of a model whose step has several.

    The weights that each of them trains are known only when the step passes them, so the step
    is run once, on one row, with nothing assigned.

    Args:
        model: The model, whose own variables are built.
        strategy: The strategy it is to train under.
        data: A row of data, as `train_step` takes it.
    """
    beside = [o for o in other_optimizers(model) if not o.built]
    if not beside or not has_several_optimizers(model):
        return
    handed = rehearse(model, data)
    with strategy.scope():
        for optimizer in beside:
            if id(optimizer) in handed:
                optimizer.build(handed[id(optimizer)])


def rehearse(model: keras.Model, data: Any) -> dict[int, list[keras.Variable]]:
    """Runs a model's own `train_step` without assigning anything, so that it makes its variables.

    Args:
        model: The model, whose own variables are built.
        data: A row of data, as `train_step` takes it.

    Returns:
        The weights that each optimizer receives, by the optimizer's `id`.
    """
    handed: dict[int, list[keras.Variable]] = {}

    def note(optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
        if trainable_variables is not None:
            handed[id(optimizer)] = list(trainable_variables)

    mapping = [(v, v.value) for v in model.trainable_variables]
    scope = keras.StatelessScope(mapping, collect_losses=True)
    with standing_in(all_optimizers(model), note), scope:
        model.train_step(data)
    return handed
