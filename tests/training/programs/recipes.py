"""Keras' recipes: losses in layers, own trainers, own regularisation."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tests.training.conformance.setting import Recipe, Setting, batches
from tests.training.programs.program import images, program, table


class LogisticEndpoint(layers.Layer):
    """Takes the targets as an input, adds its loss, and returns predictions."""

    def __init__(self) -> None:
        super().__init__()
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    def call(self, logits: Any, targets: Any = None, sample_weight: Any = None) -> Any:
        if targets is not None:
            self.add_loss(self.loss_fn(targets, logits, sample_weight))
        return ops.sigmoid(logits)


@program(
    "keras_recipes/endpoint_layer_pattern",
    "targets and sample weights as inputs, add_loss of a Keras loss in a layer, no compiled loss",
)
def endpoint_layer_pattern(setting: Setting) -> Recipe:
    inputs = keras.Input((8,), name="inputs")
    targets = keras.Input((1,), name="targets")
    weight = keras.Input((1,), name="sample_weight")
    predicted = LogisticEndpoint()(layers.Dense(1)(inputs), targets, weight)
    model = keras.Model([inputs, targets, weight], predicted)
    model.compile(keras.optimizers.Adam(1e-2))
    x, labels = table(40, 8)
    data = {
        "inputs": x,
        "targets": labels[:, None].astype("float32"),
        "sample_weight": abs(x[:, :1]),
    }
    return Recipe(
        model,
        fit={"x": data, "epochs": 2, "batch_size": 16, "shuffle": False},
        predict={"x": data},
    )


class MyTrainer(keras.Model):
    """Wraps any model, and brings the steps."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.model = model
        self.loss1 = keras.losses.MeanSquaredError()
        self.loss2 = keras.losses.BinaryCrossentropy()

    def call(self, x: Any) -> Any:
        return self.model(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            said = self.model(x, training=True)
            total = self.loss1(y, said) + self.loss2(y, said)
        weights = self.model.trainable_variables
        gradients = tape.gradient(total, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        for metric in self.metrics:
            metric.update_state(y, said)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        said = self.model(x, training=False)
        for metric in self.metrics:
            metric.update_state(y, said)
        return {metric.name: metric.result() for metric in self.metrics}


@program(
    "keras_recipes/trainer_pattern",
    "a train_step of two losses around any model, metrics compiled without a loss",
    reference="slices",
)
def trainer_pattern(setting: Setting) -> Recipe:
    pixels, labels = images(40)
    y = keras.utils.to_categorical(labels, 4)
    inner = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Flatten(),
            layers.Dense(16, activation="relu"),
            setting.dropout(0.2, seed=3),
            layers.Dense(4, activation="softmax"),
        ]
    )
    model = MyTrainer(inner)
    model.compile(optimizer=keras.optimizers.SGD(0.1), metrics=["accuracy"])
    return Recipe(
        model,
        fit={"x": pixels, "y": y, "epochs": 2, "batch_size": 16, "shuffle": False},
        evaluate={"x": pixels, "y": y},
    )


class Antirectifier(layers.Layer):
    """Keeps both the positive and the negative part, and scales them."""

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(
            shape=(input_shape[-1] * 2, input_shape[-1]), initializer="he_normal", name="kernel"
        )

    def call(self, inputs: Any) -> Any:
        inputs = inputs - ops.mean(inputs, axis=-1, keepdims=True)
        parts = ops.concatenate([ops.relu(inputs), ops.relu(-inputs)], axis=-1)
        return ops.matmul(parts, self.kernel)


@program(
    "keras_recipes/antirectifier",
    "an own layer with weights, validation_split, RMSprop",
    reference="slices",
)
def antirectifier(setting: Setting) -> Recipe:
    pixels, labels = images(40)
    model = keras.Sequential(
        [keras.Input((144,)), layers.Dense(16), Antirectifier(), layers.Dense(16), Antirectifier()]
        + [setting.dropout(0.5, seed=3), layers.Dense(4)]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.RMSprop(),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    x = pixels.reshape(40, -1)
    return Recipe(
        model,
        fit={
            "x": x,
            "y": labels,
            "batch_size": 16,
            "epochs": 2,
            "validation_split": 0.15,
            "shuffle": False,
        },
        evaluate={"x": x, "y": labels},
    )


@program(
    "keras_recipes/quasi_svm",
    "hinge loss of one-hot targets, a fixed random projection of the inputs",
)
def quasi_svm(setting: Setting) -> Recipe:
    pixels, labels = images(40)
    model = keras.Sequential(
        [
            keras.Input((144,)),
            layers.Dense(64, activation=ops.cos, kernel_initializer="random_normal"),
            layers.Dense(4),
        ]
    )
    model.layers[0].trainable = False
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate=1e-3),
        loss=keras.losses.hinge,
        metrics=[keras.metrics.CategoricalAccuracy(name="acc")],
    )
    y = keras.utils.to_categorical(labels, 4)
    data = batches(pixels.reshape(40, -1), y)
    return Recipe(model, fit={"x": data, "epochs": 2}, evaluate={"x": data})
