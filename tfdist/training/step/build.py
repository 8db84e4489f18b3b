"""Builds the variables of a model, its optimizers, losses and metrics, from a row of data."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import tensorflow as tf

from tfdist.training.input.batch import rows_between
from tfdist.training.model.inspection import overrides
from tfdist.training.step.multi_optimizer import build_optimizers, rehearse


def build(model: keras.Model, strategy: tf.distribute.Strategy, sample: Any) -> None:
    """Builds the variables of the model, its optimizer, its losses and its metrics.

    Args:
        model: A compiled model.
        strategy: The strategy it is to train under.
        sample: A batch: x, (x, y) or (x, y, sample_weight); one row is used.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(rows_between(sample, 0, 1))
    # A model whose own steps do without a compiled loss makes its metrics itself.
    judged = (
        y is not None
        and model.compiled
        and (model.loss is not None or overrides(model, "compute_loss"))
    )
    with strategy.scope():
        y_pred = None
        if (judged and overrides(model, "call")) or _lacks_variables(model):
            try:
                y_pred = model(x)
            except Exception:
                if not _is_made_by_its_step(model, rows_between(sample, 0, 1)):
                    raise
                judged = False
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)
    if judged:
        # Keras makes the variables of compiled losses and metrics when it first sees outputs.
        # They need no place in the strategy: the replicas' sums are kept elsewhere. To read or
        # assign those that have one would be a collective of all workers, so nothing does.
        there = [(v, tf.zeros(v.shape, v.dtype)) for v in model.metrics_variables]
        there += [(v, v.value) for v in model.trainable_variables]  # Regularizers ask for them.
        model.get_metrics_result = dict
        try:
            with keras.StatelessScope(there):
                model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
                model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        finally:
            del model.get_metrics_result
    build_optimizers(model, strategy, rows_between(sample, 0, 1))
    if overrides(model, "train_step") and not getattr(model._compile_metrics, "built", True):
        # Its own step hands the compiled metrics what only it knows. Where it fails, the loop's
        # tracing of it will fail with the same error.
        with contextlib.suppress(Exception):
            rehearse(model, rows_between(sample, 0, 1))


def _is_made_by_its_step(model: keras.Model, row: Any) -> bool:
    """Makes the variables by the model's own `train_step`; returns whether that could be done.

    The step may call the model on something else than x of (x, y), such as a graph it holds. It
    may well fail later, as no tape knows weights that are being made.
    """
    if not overrides(model, "train_step") or getattr(model, "optimizer", None) is None:
        return False
    with contextlib.suppress(Exception):
        rehearse(model, row)
    return not _lacks_variables(model)


def _lacks_variables(model: keras.Model) -> bool:
    """Returns whether a part of the model still needs an input to make its variables."""
    if not overrides(model, "call"):
        return False  # Its own steps call its parts.
    if overrides(model, "train_step") and not overrides(model, "build"):
        # What it calls itself with, its own steps know; x of (x, y) may be something else.
        return any(not layer.built for layer in model.layers)
    return not model.built or any(not layer.built for layer in model.layers)
