"""Images: classification, restoration and segmentation, by `fit` of a functional model."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tests.training.conformance.setting import Recipe, Setting, batches, generator
from tests.training.programs.program import images, program


@program(
    "vision/mnist_convnet",
    "convolutions, dropout, one-hot targets, validation_split",
    reference="slices",
)
def mnist_convnet(setting: Setting) -> Recipe:
    x, labels = images(48)
    y = keras.utils.to_categorical(labels, 4)
    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            setting.dropout(0.5, seed=3),
            layers.Dense(4, activation="softmax"),
        ]
    )
    model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
    return Recipe(
        model,
        fit={
            "x": x,
            "y": y,
            "batch_size": 16,
            "epochs": 2,
            "validation_split": 0.25,
            "shuffle": False,
        },
        evaluate={"x": x, "y": y},
        predict={"x": x},
    )


@program(
    "vision/image_classification_from_scratch",
    "separable convolutions, BatchNormalization, residuals, a ModelCheckpoint an epoch",
    reference="slices",
    dtype="float64",
)
def image_classification_from_scratch(setting: Setting) -> Recipe:
    inputs = keras.Input((16, 16, 3))
    x = layers.Rescaling(2.0, offset=-1)(inputs)
    x = layers.Conv2D(8, 3, strides=2, padding="same")(x)
    x = layers.Activation("relu")(setting.normalization()(x))
    previous = x
    for size in (8, 16):
        for _ in range(2):
            x = layers.Activation("relu")(x)
            x = layers.SeparableConv2D(size, 3, padding="same")(x)
            x = setting.normalization()(x)
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        projected = layers.Conv2D(size, 1, strides=2, padding="same")(previous)
        previous = x = layers.add([x, projected])
    x = layers.GlobalAveragePooling2D()(x)
    outputs = layers.Dense(1)(setting.dropout(0.25, seed=3)(x))
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(3e-4),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(name="acc")],
    )
    pixels, labels = images(40, side=16, channels=3, classes=2)
    saves = keras.callbacks.ModelCheckpoint(str(setting.folder / "save_at_{epoch}.keras"))
    return Recipe(
        model,
        fit={
            "x": batches(pixels[:32], labels[:32]),
            "epochs": 2,
            "callbacks": [saves],
            "validation_data": batches(pixels[32:], labels[32:]),
        },
        predict={"x": pixels[32:]},
    )


class Patches(layers.Layer):
    """Cuts images into squares."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def call(self, pixels: Any) -> Any:
        cut = ops.image.extract_patches(pixels, size=self.size)
        count = cut.shape[1] * cut.shape[2]
        return ops.reshape(cut, (-1, count, cut.shape[3]))


class PatchEncoder(layers.Layer):
    """Projects patches, and adds what stands for their places."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.count = count
        self.projection = layers.Dense(width)
        self.places = layers.Embedding(input_dim=count, output_dim=width)

    def call(self, patches: Any) -> Any:
        places = ops.expand_dims(ops.arange(0, self.count), axis=0)
        return self.projection(patches) + self.places(places)


@program(
    "vision/image_classification_with_vision_transformer",
    "own layers, attention, layer normalization, AdamW, top-k accuracy, normalization adapted",
    reference="slices",
    # In float32, as top-k accuracy must be. What the bias of attention's keys gets from AdamW is
    # rounding, and the outputs do not depend on it.
    only=("history", "evaluate", "predict"),
)
def image_classification_with_vision_transformer(setting: Setting) -> Recipe:
    pixels, labels = images(48, channels=3)
    normalization = layers.Normalization()
    normalization.adapt(pixels)
    inputs = keras.Input((12, 12, 3))
    x = PatchEncoder(9, 16)(Patches(4)(normalization(inputs)))
    for block in range(2):
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        y = layers.MultiHeadAttention(num_heads=2, key_dim=16)(y, y)
        x = between = layers.Add()([y, x])
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        for width in (32, 16):
            y = layers.Dense(width, activation=keras.activations.gelu)(y)
            y = setting.dropout(0.1, seed=width + block)(y)
        x = layers.Add()([y, between])
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    x = setting.dropout(0.5, seed=5)(layers.Flatten()(x))
    model = keras.Model(inputs, layers.Dense(4)(x))
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate=1e-3, weight_decay=1e-4),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[
            keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
            keras.metrics.SparseTopKCategoricalAccuracy(2, name="top-2-accuracy"),
        ],
    )
    checkpoint = keras.callbacks.ModelCheckpoint(
        str(setting.folder / "best.weights.h5"),
        monitor="val_accuracy",
        save_best_only=True,
        save_weights_only=True,
    )
    return Recipe(
        model,
        fit={
            "x": pixels,
            "y": labels,
            "batch_size": 16,
            "epochs": 2,
            "validation_split": 0.25,
            "callbacks": [checkpoint],
            "shuffle": False,
        },
        evaluate={"x": pixels, "y": labels},
        predict={"x": pixels},
    )


@program("vision/autoencoder", "transposed convolutions, images as targets, two calls of fit")
def autoencoder(setting: Setting) -> Recipe:
    inputs = keras.Input((12, 12, 1))
    x = inputs
    for _ in range(2):
        x = layers.Conv2D(8, 3, activation="relu", padding="same")(x)
        x = layers.MaxPooling2D(2, padding="same")(x)
    for _ in range(2):
        x = layers.Conv2DTranspose(8, 3, strides=2, activation="relu", padding="same")(x)
    model = keras.Model(inputs, layers.Conv2D(1, 3, activation="sigmoid", padding="same")(x))
    model.compile(optimizer="adam", loss="binary_crossentropy")
    clean, _ = images(40)
    noise = generator(1).normal(size=clean.shape)
    noisy = np.clip(clean + 0.4 * noise, 0.0, 1.0).astype("float32")
    options = {"epochs": 2, "batch_size": 16, "shuffle": False}

    def denoise(runner: Any) -> dict[str, Any]:
        data = {"x": noisy, "y": clean, "validation_data": (noisy[:20], clean[:20])}
        history = runner.fit(**data, **options, verbose=0)
        return history.history | {"denoised": runner.predict(noisy, verbose=0)}

    return Recipe(
        model,
        fit={"x": clean, "y": clean, "validation_data": (clean[:20], clean[:20]), **options},
        predict={"x": clean},
        after=denoise,
    )


@program(
    "vision/oxford_pets_image_segmentation",
    "a U-Net, a class for each pixel, BatchNormalization, a dataset",
    reference="slices",
    dtype="float64",
)
def oxford_pets_image_segmentation(setting: Setting) -> Recipe:
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same")(inputs)
    x = layers.Activation("relu")(setting.normalization()(x))
    previous = x
    for filters in (8, 16):
        for _ in range(2):
            x = layers.Activation("relu")(x)
            x = layers.SeparableConv2D(filters, 3, padding="same")(x)
            x = setting.normalization()(x)
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        previous = x = layers.add([x, layers.Conv2D(filters, 1, strides=2)(previous)])
    for filters in (16, 8, 4):
        for _ in range(2):
            x = layers.Activation("relu")(x)
            x = layers.Conv2DTranspose(filters, 3, padding="same")(x)
            x = setting.normalization()(x)
        x = layers.UpSampling2D(2)(x)
        above = layers.Conv2D(filters, 1, padding="same")(layers.UpSampling2D(2)(previous))
        previous = x = layers.add([x, above])
    model = keras.Model(inputs, layers.Conv2D(3, 3, activation="softmax", padding="same")(x))
    model.compile(keras.optimizers.Adam(1e-4), "sparse_categorical_crossentropy")
    pixels, _ = images(32, side=16, channels=3)
    masks = (pixels.mean(axis=-1, keepdims=True) * 3).astype("int32").clip(0, 2)
    return Recipe(
        model,
        fit={
            "x": batches(pixels, masks),
            "epochs": 2,
            "validation_data": batches(pixels[:8], masks[:8]),
        },
        predict={"x": pixels},
    )
