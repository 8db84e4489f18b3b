"""A `train_step` that updates weights itself, with several optimizers, as that of a GAN.

What comes later in such a step sees the weights that came earlier out of it, so an update cannot
wait for the end of the step. Each replica computes it, from gradients reduced over all of them:
all compute the same, and what the optimizers assigned is assigned for good after the step.
See https://keras.io/guides/custom_train_step_in_tensorflow/ (the GAN at its end).
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import ConfigError

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

Reduce = Callable[[list[Any]], list[Any]]


def optimizers_beside(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """The optimizers that the model holds beside the one it was compiled with."""
    held = [v for v in vars(model).values() if isinstance(v, keras.optimizers.Optimizer)]
    return [v for v in held if v is not model.optimizer]


def all_optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """The optimizer that the model was compiled with, and those beside it."""
    return [model.optimizer, *optimizers_beside(model)]


def updates_within(model: keras.Model) -> bool:
    """Whether the model has a `train_step` of its own, and optimizers beside the compiled one."""
    return type(model).train_step is not keras.Model.train_step and bool(optimizers_beside(model))


class UpdatesWithin(contextlib.AbstractContextManager["UpdatesWithin"]):
    """Stands in for `apply` of all optimizers of a model while its step runs.

    It is entered around `strategy.run`, as the replicas, which are threads that take turns,
    share the optimizers.

    Args:
        model: The model; `active` says whether it has such a step.
    """

    def __init__(self, model: keras.Model) -> None:
        self._name = f"{type(model).__name__}.train_step"
        self.active = updates_within(model)
        self._optimizers = all_optimizers(model) if self.active else []
        self._of_thread = threading.local()

    def __enter__(self) -> UpdatesWithin:
        _stand_in(self._optimizers, self._apply)
        return self

    def __exit__(self, *_: object) -> None:
        _stand_back(self._optimizers)

    @contextlib.contextmanager
    def step(self, reduce: Reduce) -> Iterator[None]:
        """A replica's step: what it applies is reduced, and applied at once.

        Args:
            reduce: Gives the global batch's gradients for those of the replica's slice.

        Raises:
            ConfigError: The step updates a weight twice, or none at all.
        """
        self._of_thread.reduce = reduce
        updated = self._of_thread.updated = set[int]()
        try:
            yield
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

    def values(self, scope: keras.StatelessScope) -> dict[int, tuple[keras.Variable, tf.Tensor]]:
        """What the optimizers assigned in the scope, which has ended: weights and their own."""
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
        return found

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
        reduced = self._of_thread.reduce(dense)  # Another replica may have its turn meanwhile.
        with _plain(optimizer):
            type(optimizer).apply(optimizer, reduced, variables)

    def _twice(self) -> ConfigError:
        return ConfigError(
            f"{self._name}: updates the same weights more than once a step; allowed: once a step "
            "for each weight; make the rounds steps of their own (more batches)"
        )


def _stand_in(optimizers: list[keras.optimizers.Optimizer], function: Callable[..., None]) -> None:
    for optimizer in optimizers:
        optimizer.apply = functools.partial(function, optimizer)


def _stand_back(optimizers: list[keras.optimizers.Optimizer]) -> None:
    for optimizer in optimizers:
        del optimizer.apply


@contextlib.contextmanager
def _plain(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Makes an optimizer assign to Keras' variables, and know them by themselves."""
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

    Which weights each of them trains shows only when the step hands them over, so it is run
    once, on one row, with nothing assigned.

    Args:
        model: The model, whose own variables are built.
        strategy: The strategy it is to train under.
        data: A row of data, as `train_step` takes it.
    """
    beside = [o for o in optimizers_beside(model) if not o.built]
    if not beside or not updates_within(model):
        return
    handed: dict[int, list[keras.Variable]] = {}

    def note(optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
        if trainable_variables is not None:
            handed[id(optimizer)] = list(trainable_variables)

    optimizers = all_optimizers(model)
    _stand_in(optimizers, note)
    mapping = [(v, v.value) for v in model.trainable_variables]
    try:
        with keras.StatelessScope(mapping, collect_losses=True):
            model.train_step(data)
    finally:
        _stand_back(optimizers)
    with strategy.scope():
        for optimizer in beside:
            if id(optimizer) in handed:
                optimizer.build(handed[id(optimizer)])
