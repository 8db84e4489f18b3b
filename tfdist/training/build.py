"""Gets a compiled model ready to train: its variables built, what cannot work refused."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.training.batch import rows_between
from tfdist.training.updates_within import (
    build_optimizers,
    optimizers_beside,
    updates_within,
)

_KERAS = tuple(int(part) for part in keras.__version__.split(".")[:2])


def check(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Refuses what cannot give under this strategy what it gives on one device.

    Raises:
        ConfigError: Names the feature, the strategy and what to do.
    """
    name = type(strategy).__name__
    if not model.compiled:
        raise ConfigError("Trainer(model): the model is not compiled; call model.compile(...)")
    optimizer = inner_optimizer(model.optimizer)
    if getattr(optimizer, "gradient_accumulation_steps", None):
        raise ConfigError(
            f"optimizer.gradient_accumulation_steps: {optimizer.gradient_accumulation_steps} "
            f"is given, which adds up unreduced gradients under {name}; use "
            "Trainer(model, accumulate_steps=...) instead"
        )
    decay = type(optimizer)._apply_weight_decay
    if decay is not keras.optimizers.Optimizer._apply_weight_decay:
        for argument in ("weight_decay", "adam_weight_decay"):  # Muon has both.
            if getattr(optimizer, argument, None):
                raise ConfigError(
                    f"optimizer.{argument}: {type(optimizer).__name__} applies it to the weights "
                    f"in its own way, which {name} cannot follow; use {argument}=None, or AdamW"
                )
    own_update = type(optimizer)._backend_update_step
    if own_update is not keras.optimizers.Optimizer._backend_update_step and isinstance(
        strategy, tf.distribute.experimental.CentralStorageStrategy
    ):
        raise ConfigError(
            f"optimizer: {type(optimizer).__name__} assigns a variable on each replica, which "
            f"{name} does not allow; use Adam or AdamW, or another strategy"
        )
    replicas = strategy.num_replicas_in_sync
    remote = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    if (replicas > 1 or remote) and model.jit_compile is True:
        raise ConfigError(
            f"compile(jit_compile=True): XLA cannot compile {name}'s "
            f"{'variables on other tasks' if remote else 'collectives'}; "
            "use jit_compile=False or 'auto'"
        )
    if updates_within(model):
        _check_within(model, strategy)
    if replicas > 1 and _KERAS < (3, 14):
        for layer in model._flatten_layers():
            if getattr(layer, "activity_regularizer", None) is not None:
                raise ConfigError(
                    f"layer {layer.name!r}: Keras {keras.__version__} adds its activity "
                    f"regularizer up over a batch instead of averaging it, which {name} cannot "
                    "follow; use Keras 3.14 or newer"
                )
    reductions = loss_reductions(model)
    if replicas > 1 and "mean_with_sample_weight" in reductions:
        raise ConfigError(
            f"loss.reduction: 'mean_with_sample_weight' divides by each replica's own weights "
            f"under {name}; use 'sum_over_batch_size'"
        )
    if replicas > 1 and "sum" in reductions and len(reductions) > 1:
        raise ConfigError(
            f"loss.reduction: some losses have 'sum' and some a mean, which {name} cannot add up; "
            "use one reduction for all"
        )
    for variable in (*model.variables, *optimizer.variables):
        if variable.value is not None and not _made_in(variable, strategy):
            raise ConfigError(
                f"Trainer(model): {variable.path} was not made under {name}; build and compile "
                "the model inside 'with strategy.scope():'"
            )


def _check_within(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    where = f"{type(model).__name__}.train_step: uses several optimizers, which"
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise ConfigError(
            f"{where} {type(strategy).__name__} cannot: its workers' updates would overwrite each "
            "other's; use a synchronous strategy"
        )
    if inner_optimizer(model.optimizer) is not model.optimizer:
        raise ConfigError(
            f"{where} loss scaling cannot: it is the compiled one's alone; use mixed_bfloat16"
        )
    for optimizer in optimizers_beside(model):
        given = {
            "gradient_accumulation_steps": optimizer.gradient_accumulation_steps,
            "ema_overwrite_frequency": optimizer.use_ema and optimizer.ema_overwrite_frequency,
        }
        for argument, value in given.items():
            if value:
                raise ConfigError(
                    f"{where} does not go with {argument} of one of them; leave it out"
                )


def _made_in(variable: keras.Variable, strategy: tf.distribute.Strategy) -> bool:
    return strategy.extended.variable_created_in_scope(variable.value)


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer that updates the weights, inside one that scales the loss."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def loss_reductions(model: keras.Model) -> set[str]:
    """The reductions of the losses given to `compile`; a name or function stands for a mean."""
    found = set()
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", "sum_over_batch_size")
        found.add("sum_over_batch_size" if reduction == "mean" else str(reduction))
    return found


def build(model: keras.Model, strategy: tf.distribute.Strategy, sample: Any) -> None:
    """Builds the variables of the model, its optimizer, its losses and its metrics.

    Args:
        model: A compiled model.
        strategy: The strategy it is to train under.
        sample: A batch: x, (x, y) or (x, y, sample_weight); one row is used.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(rows_between(sample, 0, 1))
    with strategy.scope():
        y_pred = None
        judged = y is not None and model.compiled and _has_call(model)
        if judged or _lacks_variables(model):
            y_pred = model(x)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)
    # A model whose own steps do without a compiled loss makes its metrics itself.
    if y is not None and model.compiled and (model.loss is not None or _has_own_loss(model)):
        # Keras makes the variables of compiled losses and metrics when it first sees outputs.
        # They need no place in the strategy: the replicas' sums are kept elsewhere.
        model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        model.reset_metrics()
    build_optimizers(model, strategy, rows_between(sample, 0, 1))


def _has_call(model: keras.Model) -> bool:
    return type(model).call is not keras.Model.call


def _has_own_loss(model: keras.Model) -> bool:
    return type(model).compute_loss is not keras.Model.compute_loss


def _lacks_variables(model: keras.Model) -> bool:
    """Says whether a part of the model has yet to see an input to make its variables."""
    if not _has_call(model):
        return False  # Its own steps call its parts.
    return not model.built or any(not layer.built for layer in model.layers)
