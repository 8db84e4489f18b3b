"""Builds the variables of a model, its optimizers, losses and metrics, from a row of data."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.keras_internals import clear_losses, compiled_parts, compute_output_spec, flatten_layers
from tfdist.training.input.batch import rows_between
from tfdist.training.model.inspection import (
    all_optimizers,
    has_several_optimizers,
    other_optimizers,
    overrides,
)
from tfdist.training.step.patches.capture import intercept_apply


def build(model: keras.Model, strategy: tf.distribute.Strategy, sample: Any) -> None:
    """Builds the variables of the model, its optimizer, its losses and its metrics.

    Args:
        model: A compiled model.
        strategy: The strategy it is to train under.
        sample: A batch: x, (x, y) or (x, y, sample_weight); one row is used.
    """
    row = rows_between(sample, 0, 1)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(row)
    y_pred = None
    with strategy.scope():
        if lacks_variables(model):
            _make_variables(model, x, row)
        if y is not None and _lacks_losses_or_metrics(model) and overrides(model, "call"):
            y_pred = _output(model, x)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)
    # A model whose own steps do without a compiled loss makes its metrics itself.
    if y_pred is not None and (model.loss is not None or overrides(model, "compute_loss")):
        _make_losses_and_metrics(model, x, y, y_pred, sample_weight)
    build_optimizers(model, strategy, row)
    _make_metrics_of_its_step(model, row)


def _make_variables(model: keras.Model, x: Any, row: Any) -> None:
    """Makes the model's variables as Keras does: without running it, where that is possible.

    Raises:
        ConfigError: It takes batches of one size only.
    """
    try:
        compute_output_spec(model, x)
        clear_losses(model)
    except Exception:  # Some models cannot run symbolically.
        try:
            model(x)
        except Exception as error:
            if not _is_made_by_its_step(model, row):
                raise _reason(model) or error from error


def _is_made_by_its_step(model: keras.Model, row: Any) -> bool:
    """Makes the variables by running the model's own `train_step`; returns whether it did.

    The step may call the model on something other than x of (x, y), such as a graph it holds. It
    may fail after that, as its tape does not watch weights that it has just made.
    """
    if not overrides(model, "train_step") or getattr(model, "optimizer", None) is None:
        return False
    with contextlib.suppress(Exception):
        _dry_run_train_step(model, row)
    return not lacks_variables(model)


def _output(model: keras.Model, x: Any) -> Any:
    """Computes the model's output for one row, without any assignment.

    Returns:
        The output; None if the call fails and the model has its own step, which may call it in
        another way.
    """
    try:
        with keras.StatelessScope():
            return model(x)
    except Exception as error:
        if overrides(model, "train_step"):
            return None
        raise _reason(model) or error from error


def _reason(model: keras.Model) -> ConfigError | None:
    """Returns the error of a model that takes one batch size only; None for other models."""
    for tensor in keras.tree.flatten(getattr(model, "inputs", None) or ()):
        if tensor.shape[0] is not None:
            return ConfigError(
                f"input {tensor.name!r}: it is made for batches of {tensor.shape[0]} rows, which "
                "are divided among the replicas; make it with keras.Input(shape), for any number "
                "of rows"
            )
    return None


class _Zeros(dict[str, Any]):
    """Results of metrics that are not read: a zero of any name."""

    def __missing__(self, name: str) -> tf.Tensor:
        return tf.zeros([])


def _make_losses_and_metrics(
    model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any
) -> None:
    """Makes the variables of compiled losses and metrics, which Keras makes at the first output.

    They are made outside the strategy's scope, as the replicas' sums are kept elsewhere. To read
    or assign metrics made in the scope would be a collective of all workers, so nothing does.
    """
    # Keras' fit resets metrics first; a model may make its own when they are first asked for.
    _ = model.metrics
    model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
    there = [(v, tf.zeros(v.shape, v.dtype)) for v in model.metrics_variables]
    model.get_metrics_result = _Zeros
    try:
        with keras.StatelessScope(there):
            model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    finally:
        del model.get_metrics_result


def build_optimizers(model: keras.Model, strategy: tf.distribute.Strategy, data: Any) -> None:
    """Builds the optimizers of a model whose step has several.

    The weights that each of them trains are known only when the step passes them, so the step
    is run once, on one row, with nothing assigned.

    Args:
        model: The model, whose own variables are built.
        strategy: The strategy it is to train under.
        data: A row of data, as `train_step` takes it.
    """
    others = [o for o in other_optimizers(model) if not o.built]
    if not others or not has_several_optimizers(model):
        return
    handed = _dry_run_train_step(model, data)
    with strategy.scope():
        for optimizer in others:
            if id(optimizer) in handed:
                optimizer.build(handed[id(optimizer)])


def _make_metrics_of_its_step(model: keras.Model, row: Any) -> None:
    """Makes compiled metrics that only the model's own step updates.

    Raises:
        ConfigError: The step does not make them, and the model has no `call`.
    """
    _, metrics = compiled_parts(model)
    if metrics is None or metrics.built or not overrides(model, "train_step"):
        return
    # Where the step fails, the loop's tracing of it will fail with the same error.
    with contextlib.suppress(Exception):
        _dry_run_train_step(model, row)
    if not metrics.built and not overrides(model, "call"):
        raise ConfigError(
            f"{type(model).__name__}: its compiled metrics cannot be made before training, as it "
            "has no call; make them in __init__ (self.mae = keras.metrics...) and update them in "
            "its steps"
        )


def _lacks_losses_or_metrics(model: keras.Model) -> bool:
    """Returns whether a compiled loss or metric may need an output to make its variables."""
    if not model.compiled:
        return False
    unbuilt = any(part is not None and not part.built for part in compiled_parts(model))
    # Metrics that the model updates itself may make variables at the first update.
    return unbuilt or overrides(model, "compute_metrics")


def lacks_variables(model: keras.Model) -> bool:
    """Returns whether a part of the model still needs an input to make its variables."""
    if not overrides(model, "call"):
        return False  # Its own steps call its parts.
    # The same as `Model.layers`, which a layer that inherits from Trainer does not have.
    parts = flatten_layers(model, include_self=False, recursive=False)
    lacks = any(not layer.built for layer in parts)
    if overrides(model, "train_step") and not overrides(model, "build"):
        # Its own step may call it with something other than x of (x, y).
        return lacks
    return not model.built or lacks


def _dry_run_train_step(model: keras.Model, data: Any) -> dict[int, list[keras.Variable]]:
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
    with intercept_apply(all_optimizers(model), note), scope:
        model.train_step(data)
    return handed
