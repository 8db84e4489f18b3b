"""Inspects a Keras model: its variables, metrics, optimizers, losses and overridden methods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras

_SEED_NAME = "seed_generator_state"


@dataclass(frozen=True)
class ModelVariables:
    """A built model's variables, grouped by their use in a step.

    Attributes:
        trainable: The weights, in the order of their gradients.
        state: The variables that the model itself may assign: statistics, seeds, counters.
        metrics: The variables of its metrics.
    """

    trainable: list[keras.Variable]
    state: list[keras.Variable]
    metrics: list[keras.Variable]

    @classmethod
    def of(cls, model: keras.Model) -> ModelVariables:
        """Returns the variables that a model has now."""
        return cls(
            list(model.trainable_variables),
            list(model.non_trainable_variables),
            list(model.metrics_variables),
        )


def is_overwritten(variable: keras.Variable) -> bool:
    """Returns whether a weight's gradient is its new value, as of the scales of float8 layers."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def overrides(model: keras.Model, method: str) -> bool:
    """Returns whether the model's class overrides `method`."""
    return getattr(type(model), method) is not getattr(keras.Model, method)


def flat_metrics(model: keras.Model) -> Iterator[keras.Metric]:
    """Returns the model's metrics in order, including those inside compiled metrics and losses."""
    seen: set[int] = set()
    stack = list(reversed(model.metrics))
    while stack:
        metric = stack.pop()
        if id(metric) in seen:
            continue
        seen.add(id(metric))
        inner = getattr(metric, "metrics", None)
        if inner:
            stack.extend(reversed(inner))
        else:
            yield metric


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Returns the optimizer that updates the weights, inside one that scales the loss."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def compiled_optimizer(model: keras.Model) -> keras.optimizers.Optimizer | None:
    """Returns the optimizer that the model was compiled with; None before `compile`."""
    return getattr(model, "optimizer", None)


def other_optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Returns the optimizers of the model other than the one it was compiled with."""
    own = [v for v in vars(model).values() if isinstance(v, keras.optimizers.Optimizer)]
    return [v for v in own if v is not compiled_optimizer(model)]


def all_optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Returns the optimizer that the model was compiled with, and its other optimizers."""
    own = compiled_optimizer(model)
    return [*([own] if own is not None else []), *other_optimizers(model)]


def has_several_optimizers(model: keras.Model) -> bool:
    """Returns whether the model's own `train_step` updates weights with several optimizers."""
    return overrides(model, "train_step") and bool(other_optimizers(model))


def is_seed(variable: Any) -> bool:
    """Returns whether the variable is the state of a `keras.random.SeedGenerator`."""
    return variable.name == _SEED_NAME and tuple(variable.shape) == (2,)
