"""Builds Keras' ResNet50 with the settings that distributed training needs."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import keras

from tfdist.errors import ConfigError

_HEAD = "predictions"


def resnet50(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    classes: int = 1000,
    *,
    weights: str | os.PathLike[str] | None = None,
    activation: str | None = "softmax",
    batch_norm_momentum: float = 0.9,
    synchronized_batch_norm: bool = False,
    zero_gamma: bool = False,
) -> keras.Model:
    """Builds a ResNet50 with layers named as in `keras.applications.ResNet50`.

    Under a mixed-precision policy its output still has the type `keras.config.floatx()`.

    Args:
        input_shape: Height, width and channels; 32 x 32 at least.
        classes: The number of classes.
        weights: A file of saved weights to start from (`.weights.h5`, `.h5` or
            `.keras`) of a ResNet50 with the same channels. If its head has
            other classes, or is absent, the head keeps its initial weights.
        activation: The activation of the head; None for logits.
        batch_norm_momentum: The fraction of the moving statistics that each step
            keeps. Keras' 0.99 has not settled after a hundred steps.
        synchronized_batch_norm: Normalise over the global batch, not over each
            replica's slice. Slower, and equal to one device.
        zero_gamma: Start the last BatchNormalization of each block at 0, so
            that every block begins as the identity (Goyal et al. 2017, §5.1).

    Returns:
        The model, not compiled.

    Raises:
        ConfigError: An argument is out of range, or `weights` is not such a file.

    Example:
        >>> model = tfdist.models.resnet50(input_shape=(32, 32, 3), classes=10)
        >>> model.output_shape, model.count_params()
        ((None, 10), 23608202)
    """
    height, width, channels = _checked_shape(input_shape)
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
        raise ConfigError(f"resnet50(classes): {classes!r} is not a whole number of 1 or more")
    if not 0 <= batch_norm_momentum < 1:
        raise ConfigError(
            f"resnet50(batch_norm_momentum): {batch_norm_momentum!r} is not in [0, 1)"
        )
    body = keras.applications.ResNet50(
        include_top=False, weights=None, pooling="avg", input_shape=(height, width, channels)
    )
    # keras.applications has no argument for these two. Nothing is traced yet,
    # so setting them is as good as passing them.
    for layer in body.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = batch_norm_momentum
            layer.synchronized = synchronized_batch_norm
            if zero_gamma and layer.name.endswith("_3_bn"):
                layer.gamma.assign(keras.ops.zeros_like(layer.gamma))
    # Softmax in float16 loses what the loss needs.
    head = keras.layers.Dense(
        classes, activation=activation, dtype=keras.config.floatx(), name=_HEAD
    )
    model = keras.Model(body.input, head(body.output), name="resnet50")
    if weights is not None:
        _load(model, body, Path(weights))
    return model


def _checked_shape(input_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    shape = tuple(input_shape)
    if len(shape) != 3 or any(not isinstance(size, int) or size < 1 for size in shape):
        raise ConfigError(
            f"resnet50(input_shape): {input_shape!r} is not (height, width, channels), "
            "all whole numbers"
        )
    height, width, channels = shape
    if min(height, width) < 32:
        raise ConfigError(
            f"resnet50(input_shape): {height} x {width} is too small; ResNet50 halves five times "
            "and takes 32 x 32 or more: enlarge the images"
        )
    return height, width, channels


def _load(model: keras.Model, body: keras.Model, path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"resnet50(weights): {str(path)!r} is not a file")
    with warnings.catch_warnings():
        # Keras warns of every container a file does not have, also where all weights load.
        warnings.simplefilter("ignore")
        try:
            model.load_weights(path)
        except (OSError, ValueError):
            # Other classes, or no head at all: everything below it must still fit.
            try:
                body.load_weights(path)
            except (OSError, ValueError) as error:
                reason = str(error).strip().splitlines()[0]
                raise ConfigError(
                    f"resnet50(weights): {str(path)!r} does not fit a ResNet50 with "
                    f"{body.input_shape[-1]} channels: {reason}"
                ) from error
