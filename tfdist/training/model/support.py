"""Rejects models that cannot give the same result under a strategy as on one device."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.keras_internals import flatten_layers, has_own_update, has_own_weight_decay
from tfdist.strategy.kinds import kind_of, public_name
from tfdist.training.model.inspection import (
    has_several_optimizers,
    inner_optimizer,
    is_overwritten,
    other_optimizers,
    overrides,
)
from tfdist.validation import quote

_KERAS = tuple(int(part) for part in keras.__version__.split(".")[:2])


def strategy_of(model: keras.Model) -> tf.distribute.Strategy:
    """Returns the strategy that a model was made under.

    Raises:
        ConfigError: It is not a model of Keras 3.
    """
    # What only trains as a model does, a layer with Keras' Trainer as a base, will do.
    if not hasattr(model, "distribute_strategy"):
        raise ConfigError(
            f"Trainer(model): {quote(model)} is given; allowed: a keras.Model of Keras 3, made "
            "inside 'with strategy.scope():'"
        )
    return model.distribute_strategy


def check_supported(
    model: keras.Model, strategy: tf.distribute.Strategy, *, runs_keras_steps: bool = False
) -> None:
    """Rejects a model that cannot give the same result under this strategy as on one device.

    Args:
        model: The model.
        strategy: Its strategy.
        runs_keras_steps: Whether Keras' own steps run unchanged, so that only `compile` is checked.

    Raises:
        ConfigError: Names the feature, the strategy and what to do.
    """
    if not model.compiled:
        raise ConfigError("Trainer(model): the model is not compiled; call model.compile(...)")
    if runs_keras_steps:
        return
    _check_optimizer(model, strategy)
    _check_xla(model, strategy)
    if has_several_optimizers(model):
        _check_several_optimizers(model, strategy)
    if overrides(model, "train_step"):
        where = f"{type(model).__name__}.train_step under {public_name(strategy)}"
        _check_overwritten(model, where, "leave the step to Keras")
    if strategy.num_replicas_in_sync > 1:
        _check_regularizers(model, public_name(strategy))
    _check_rows(model, strategy)
    _check_scope(model, strategy)


def _check_rows(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    if strategy.num_replicas_in_sync == 1 and kind_of(strategy).is_synchronous:
        return
    for layer in flatten_layers(model):
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise ConfigError(
                f"layer {layer.name!r}: stateful=True keeps a state for each row of a batch, and "
                f"the rows are divided among the replicas of {public_name(strategy)}; use "
                "stateful=False, or one device"
            )


def _check_optimizer(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    name = public_name(strategy)
    optimizer = inner_optimizer(model.optimizer)
    if getattr(optimizer, "gradient_accumulation_steps", None):
        raise ConfigError(
            f"optimizer.gradient_accumulation_steps: {optimizer.gradient_accumulation_steps} "
            f"is given, which adds up unreduced gradients under {name}; use "
            "Trainer(model, accumulate_steps=...) instead"
        )
    if has_own_weight_decay(optimizer):
        for argument in ("weight_decay", "adam_weight_decay"):  # Muon has both.
            if getattr(optimizer, argument, None):
                raise ConfigError(
                    f"optimizer.{argument}: {type(optimizer).__name__} applies it to the weights "
                    f"in its own way, which {name} cannot follow; use {argument}=None, or AdamW"
                )
    if type(optimizer).__name__ == "ScheduleFreeAdamW" and kind_of(strategy).name != "default":
        raise ConfigError(
            f"optimizer: ScheduleFreeAdamW of Keras {keras.__version__} computes other updates "
            f"inside {name} than outside of a strategy; use AdamW, or one device"
        )
    if has_own_update(optimizer) and kind_of(strategy).name == "central_storage":
        raise ConfigError(
            f"optimizer: {type(optimizer).__name__} assigns a variable on each replica, which "
            f"{name} does not allow; use Adam or AdamW, or another strategy"
        )


def _check_xla(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    remote = not kind_of(strategy).is_synchronous
    if (strategy.num_replicas_in_sync > 1 or remote) and model.jit_compile is True:
        raise ConfigError(
            f"compile(jit_compile=True): XLA cannot compile {public_name(strategy)}'s "
            f"{'variables on other tasks' if remote else 'collectives'}; "
            "use jit_compile=False or 'auto'"
        )


def _check_overwritten(model: keras.Model, where: str, instead: str) -> None:
    for variable in filter(is_overwritten, model.trainable_variables):
        raise ConfigError(
            f"{where}: {variable.path} is a float8 scale, which needs the whole batch at "
            f"once; {instead}"
        )


def _check_regularizers(model: keras.Model, what: str) -> None:
    for layer in flatten_layers(model) if _KERAS < (3, 14) else ():
        if getattr(layer, "activity_regularizer", None) is not None:
            raise ConfigError(
                f"layer {layer.name!r}: Keras {keras.__version__} adds its activity "
                f"regularizer up over a batch instead of averaging it, which {what} cannot "
                "follow; use Keras 3.14 or newer"
            )


def _check_scope(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    for variable in (*model.variables, *inner_optimizer(model.optimizer).variables):
        if variable.value is not None and not _made_in(variable, strategy):
            raise ConfigError(
                f"Trainer(model): {variable.path} was not made under {public_name(strategy)}; "
                "build and compile the model inside 'with strategy.scope():'"
            )


def _check_several_optimizers(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    where = f"{type(model).__name__}.train_step: uses several optimizers, which"
    if not kind_of(strategy).is_synchronous:
        raise ConfigError(
            f"{where} {public_name(strategy)} cannot: its workers' updates would overwrite each "
            "other's; use a synchronous strategy"
        )
    if inner_optimizer(model.optimizer) is not model.optimizer:
        raise ConfigError(
            f"{where} loss scaling does not support: only the compiled one would be scaled; "
            "use mixed_bfloat16"
        )
    for optimizer in other_optimizers(model):
        given = {
            "gradient_accumulation_steps": optimizer.gradient_accumulation_steps,
            "ema_overwrite_frequency": optimizer.use_ema and optimizer.ema_overwrite_frequency,
        }
        for argument, value in given.items():
            if value:
                raise ConfigError(
                    f"{where} cannot be combined with {argument} of one of them; leave it out"
                )


def check_update_within(
    model: keras.Model, strategy: tf.distribute.Strategy, *, accumulates: bool
) -> None:
    """Rejects options that exclude a `train_step` which reads weights after their update.

    Raises:
        ConfigError: Names the option.
    """
    where = f"{type(model).__name__}.train_step: reads weights or iterations after optimizer.apply,"
    if not kind_of(strategy).is_synchronous:
        raise ConfigError(
            f"{where} which {public_name(strategy)} updates only after the step; read them before "
            "it, or use a synchronous strategy"
        )
    if accumulates:
        raise ConfigError(
            f"{where} which accumulate_steps updates only every few batches; read them before it, "
            "or use a larger batch"
        )
    optimizer = inner_optimizer(model.optimizer)
    if optimizer is not model.optimizer:
        raise ConfigError(
            f"{where} which loss scaling does not allow; read them before it, or use mixed_bfloat16"
        )
    if optimizer.use_ema and optimizer.ema_overwrite_frequency:
        raise ConfigError(
            f"{where} which ema_overwrite_frequency does not allow; read them before it, or "
            "leave that out"
        )


def _made_in(variable: keras.Variable, strategy: tf.distribute.Strategy) -> bool:
    return strategy.extended.variable_created_in_scope(variable.value)


def check_local_steps(model: keras.Model, local_steps: int) -> None:
    """Rejects replicas that step on their own where they cannot.

    Raises:
        ConfigError: Names the strategy or the step.
    """
    if local_steps == 1:
        return
    strategy = model.distribute_strategy
    kind = kind_of(strategy)
    local = len(strategy.extended.worker_devices) if kind.name not in ("default",) else 1
    if not kind.is_synchronous or local > 1:
        raise ConfigError(
            f"Trainer(local_steps): {local_steps} is given; allowed: workers with one replica "
            f"each, under MultiWorkerMirroredStrategy, not this {kind.public}; leave it out"
        )
    if has_several_optimizers(model):
        raise ConfigError(
            f"Trainer(local_steps): {type(model).__name__}.train_step uses several optimizers and "
            "updates the weights itself; leave local_steps out"
        )
    _check_overwritten(model, f"Trainer(local_steps): {local_steps} is given", "leave it out")
    if isinstance(getattr(model, "optimizer", None), keras.optimizers.LossScaleOptimizer):
        raise ConfigError(
            f"Trainer(local_steps): {local_steps} is given, with a LossScaleOptimizer, which may "
            "leave a step out on one replica only; use bfloat16 or float32, or leave it out"
        )


def check_accumulation(model: keras.Model, accumulate_steps: int) -> None:
    """Rejects accumulation of gradients where replicas do not update the weights together.

    Raises:
        ConfigError: Names the strategy, the step or a layer.
    """
    if accumulate_steps == 1:
        return
    _check_regularizers(model, "Trainer(accumulate_steps)")
    if not kind_of(model.distribute_strategy).is_synchronous:
        raise ConfigError(
            "Trainer(accumulate_steps): under ParameterServerStrategy each worker updates "
            "the weights on its own; use a larger batch"
        )
    _check_overwritten(model, "Trainer(accumulate_steps)", "use a larger batch")
    if has_several_optimizers(model):
        raise ConfigError(
            f"Trainer(accumulate_steps): {type(model).__name__}.train_step uses several "
            "optimizers and updates the weights itself; use a larger batch"
        )
