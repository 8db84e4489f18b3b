"""Builds a convolutional network small enough for tests."""

from __future__ import annotations

import keras

from tfdist.errors import ConfigError

_KINDS = ("none", "plain", "synchronized")


def small_cnn(
    input_shape: tuple[int, int, int] = (8, 8, 1),
    classes: int = 10,
    *,
    batch_norm: str = "none",
    activation: str | None = "softmax",
) -> keras.Model:
    """Builds two convolutions and a dense head: about 1,500 parameters for the digits.

    Args:
        input_shape: Height, width and channels.
        classes: The number of classes.
        batch_norm: "none", "plain" (each replica normalises its own slice) or
            "synchronized" (over the global batch).
        activation: The activation of the head; None for logits.

    Returns:
        The model, not compiled.

    Raises:
        ConfigError: `batch_norm` is not one of the three.

    Example:
        >>> with tfdist.mirrored_strategy(["CPU:0", "CPU:1"]).scope():
        ...     model = tfdist.models.small_cnn(batch_norm="synchronized")
        ...     model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        >>> model.output_shape
        (None, 10)
    """
    if batch_norm not in _KINDS:
        raise ConfigError(
            f"small_cnn(batch_norm): {batch_norm!r} is not one of {', '.join(_KINDS)}"
        )
    inputs = images = keras.Input(input_shape)
    for filters in (8, 16):
        images = keras.layers.Conv2D(filters, 3, padding="same", use_bias=batch_norm == "none")(
            images
        )
        if batch_norm != "none":
            images = keras.layers.BatchNormalization(
                momentum=0.9, synchronized=batch_norm == "synchronized"
            )(images)
        images = keras.layers.ReLU()(images)
    features = keras.layers.GlobalAveragePooling2D()(images)
    outputs = keras.layers.Dense(classes, activation=activation, dtype=keras.config.floatx())(
        features
    )
    return keras.Model(inputs, outputs, name="small_cnn")
