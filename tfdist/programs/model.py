"""Makes the model that the options of a run describe, compiled."""

from __future__ import annotations

from typing import Any

import keras

from tfdist import data, models
from tfdist.errors import ConfigError
from tfdist.models.named import named_model
from tfdist.programs.options import TrainOptions
from tfdist.scaling.plan import Plan
from tfdist.validation import quote

_WHERE = "train(--model)"


def make_model(options: TrainOptions, source: data.Source, plan: Plan) -> keras.Model:
    """Returns the model, compiled here unless the user's function has compiled it.

    Args:
        options: The options of the run.
        source: The dataset, for the shape of images and the number of classes.
        plan: The learning rate.

    Raises:
        ConfigError: There is no such model, or it does not fit the dataset.
    """
    model = _model(options, source)
    if model.compiled:
        return model
    model.compile(
        optimizer=_optimizer(options, plan),
        loss=_loss(options.label_smoothing),
        metrics=["accuracy"],
    )
    return model


def _model(options: TrainOptions, source: data.Source) -> keras.Model:
    if options.model == "small_cnn":
        return models.small_cnn(
            source.image_shape,
            source.num_classes,
            batch_norm="synchronized" if options.synchronized_batch_norm else "plain",
        )
    if options.model == "resnet50":
        return models.resnet50(
            source.image_shape,
            source.num_classes,
            synchronized_batch_norm=options.synchronized_batch_norm,
            zero_gamma=True,
        )
    if options.synchronized_batch_norm:
        raise ConfigError(
            f"train(--synchronized-batch-norm): given with --model {options.model}, which has "
            "its own layers; allowed with resnet50 and small_cnn"
        )
    model = named_model(options.model, source.image_shape, source.num_classes, where=_WHERE)
    if model.compiled:
        _check_nothing_is_lost(options)
    shape = model.output_shape
    if not isinstance(shape, tuple) or shape[1:] != (source.num_classes,):
        raise ConfigError(
            f"{_WHERE}: {quote(options.model)} has outputs of shape {shape}; allowed: "
            f"(None, {source.num_classes}), a probability of each class of {source.name}"
        )
    return model


def _check_nothing_is_lost(options: TrainOptions) -> None:
    """Refuses options that a compiled model has already fixed."""
    default = TrainOptions()
    for name in ("optimizer", "weight_decay", "label_smoothing", "clip_norm", "ema"):
        if getattr(options, name) != getattr(default, name):
            raise ConfigError(
                f"train(--{name.replace('_', '-')}): {getattr(options, name)} is given, but the "
                f"model of {options.model} is already compiled; return it without compiling it"
            )


def _loss(label_smoothing: float) -> Any:
    if not label_smoothing:
        return "sparse_categorical_crossentropy"
    return keras.losses.CategoricalCrossentropy(label_smoothing=label_smoothing)


def _optimizer(options: TrainOptions, plan: Plan) -> keras.optimizers.Optimizer:
    schedule = plan.schedule()
    given: dict[str, Any] = {}
    if options.weight_decay:
        given["weight_decay"] = options.weight_decay
    if options.clip_norm is not None:
        given["global_clipnorm"] = options.clip_norm
    if options.ema is not None:
        given |= {"use_ema": True, "ema_momentum": options.ema}
    if options.optimizer == "adam":
        return keras.optimizers.Adam(schedule, **given)
    if options.optimizer == "adamw":
        return keras.optimizers.AdamW(schedule, **given)
    return keras.optimizers.SGD(schedule, momentum=0.9, **given)
