"""Features: kinds of models."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.training.conformance.setting import (
    BATCH,
    CLASSES,
    ROWS,
    TWO_REPLICAS,
    WIDTH,
    Recipe,
    Setting,
    SlicedBatchNormalization,
    batches,
    classifier,
    classify,
    crossentropy,
    feature,
    generator,
    glorot,
    inputs,
    labels,
    sgd,
    targets,
)

layers = keras.layers
GROUP = "Models"


@feature("Sequential", GROUP)
def sequential(setting: Setting) -> Recipe:
    model = classifier()
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    return classify(model, predicts=True)


def _two_inputs() -> tuple[list[Any], list[Any]]:
    left = keras.Input((WIDTH,), name="left")
    right = keras.Input((4,), name="right")
    both = layers.Concatenate()([layers.Dense(5, activation="tanh")(left), right])
    kind = layers.Dense(CLASSES, name="kind")(both)
    size = layers.Dense(1, name="size")(both)
    return [left, right], [kind, size]


@feature("Functional, lists of inputs and outputs, loss weights", GROUP)
def functional_lists(setting: Setting) -> Recipe:
    model = keras.Model(*_two_inputs())
    model.compile(
        sgd(),
        [crossentropy(), "mse"],
        loss_weights=[1.0, 0.3],
        metrics=[["accuracy"], ["mae"]],
    )
    x = (inputs(), inputs(width=4, seed=3))
    return Recipe(
        model,
        fit={"x": batches(x, (labels(), targets())), "epochs": 2},
        evaluate={"x": batches(x, (labels(), targets()), batch=5)},
        predict={"x": list(x), "batch_size": BATCH},
    )


@feature("Functional, dicts of inputs and outputs, sample weights by output", GROUP)
def functional_dicts(setting: Setting) -> Recipe:
    ins, outs = _two_inputs()
    model = keras.Model({"left": ins[0], "right": ins[1]}, {"kind": outs[0], "size": outs[1]})
    model.compile(
        sgd(),
        {"kind": crossentropy(), "size": "mse"},
        loss_weights={"kind": 0.5, "size": 2.0},
        metrics={"kind": "accuracy"},
        weighted_metrics={"size": "mae"},
    )
    x = {"left": inputs(), "right": inputs(width=4, seed=3)}
    y = {"kind": labels(), "size": targets()}
    weight = {
        "kind": np.linspace(0.1, 2, len(inputs())).astype("float32"),
        "size": np.linspace(1.5, 0.2, len(inputs())).astype("float32"),
    }
    return Recipe(
        model,
        fit={"x": batches(x, y, weight), "epochs": 2},
        evaluate={"x": batches(x, y, weight, batch=5)},
        predict={"x": x, "batch_size": BATCH},
    )


class Lazy(keras.Model):
    """Built on the first batch."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.hidden = layers.Dense(8, activation="relu", kernel_initializer=glorot(1))
        self.last = layers.Dense(CLASSES, kernel_initializer=glorot(2))

    def call(self, x: Any) -> Any:
        return self.last(self.hidden(x))


@feature("Subclassed, built on the first batch", GROUP)
def subclassed(setting: Setting) -> Recipe:
    model = Lazy()
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    return classify(model, predicts=True)


@feature("BatchNormalization, each replica its slice", GROUP, reference="slices")
def batch_normalization(setting: Setting) -> Recipe:
    model = classifier(setting.normalization(momentum=0.8))
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    return classify(model, predicts=True)


@feature("BatchNormalization(synchronized=True)", GROUP)
def synchronized_batch_normalization(setting: Setting) -> Recipe:
    together = setting.strategy in TWO_REPLICAS
    model = classifier(layers.BatchNormalization(momentum=0.8, synchronized=together))
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    return classify(model, predicts=True)


@feature("Dropout with seeds", GROUP, reference="slices")
def dropout(setting: Setting) -> Recipe:
    model = classifier(setting.dropout(0.4, seed=11))
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    return classify(model, predicts=True)


class OwnLoss(Lazy):
    """Adds a term of its own to the loss, for each example."""

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None
    ) -> Any:
        loss = super().compute_loss(x, y, y_pred, sample_weight)
        return loss + 0.01 * tf.reduce_mean(tf.square(y_pred))


@feature("compute_loss overridden", GROUP)
def compute_loss(setting: Setting) -> Recipe:
    model = OwnLoss()
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    return classify(model, predicts=True)


class OwnStep(Lazy):
    """Keras' guide to custom train steps, with the compiled loss and metrics."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        y_pred = self(x, training=False)
        loss = self.compute_loss(y=y, y_pred=y_pred)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


@feature("train_step and test_step overridden, compiled loss", GROUP)
def train_step(setting: Setting) -> Recipe:
    model = OwnStep()
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    return classify(model, predicts=True)


class Adversarial(keras.Model):
    """The GAN of Keras' guide; its noise is in the data, for all to draw the same."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator = classifier()
        self.generator = keras.Sequential(
            [
                keras.Input((3,)),
                layers.Dense(8, activation="tanh", kernel_initializer=glorot(3)),
                layers.BatchNormalization(trainable=False),
                layers.Dense(WIDTH, kernel_initializer=glorot(4)),
            ]
        )
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.d_loss_tracker, self.g_loss_tracker]

    def train_step(self, data: Any) -> dict[str, Any]:
        real, noise = data
        count = tf.shape(real)[0]
        fake = self.generator(noise)
        images = tf.concat([fake, real], axis=0)
        labels = tf.concat([tf.ones((count,), tf.int32), tf.zeros((count,), tf.int32)], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(images))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        # The generator is judged by the discriminator that this step has updated.
        with tf.GradientTape() as tape:
            judged = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(tf.zeros((count,), tf.int32), judged)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {"d_loss": self.d_loss_tracker.result(), "g_loss": self.g_loss_tracker.result()}


@feature(
    "train_step of a GAN: two models, two optimizers",
    GROUP,
    only=("history", "weight", "after"),
    refused={"parameter_server": "use a synchronous strategy"},
)
def adversarial(setting: Setting) -> Recipe:
    model = Adversarial()
    model.compile(
        keras.optimizers.Adam(0.02, weight_decay=1e-3),
        keras.optimizers.SGD(0.3, momentum=0.9, global_clipnorm=0.5),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    noise = generator().normal(size=(ROWS, 3)).astype("float32")

    def after(_: Any) -> dict[str, Any]:
        variables = [*model.d_optimizer.variables, *model.g_optimizer.variables]
        return {f"{i}": variable.numpy() for i, variable in enumerate(variables)}

    return Recipe(model, fit={"x": batches(inputs(ROWS), noise), "epochs": 2}, after=after)


class OwnTrackers(Lazy):
    """Keras' guide to custom train steps, with a loss and trackers of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.error = keras.metrics.MeanAbsoluteError(name="error")
        self.loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.loss_tracker.update_state(loss)
        self.error.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "error": self.error.result()}

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        y_pred = self(x, training=False)
        self.loss_tracker.update_state(self.loss_fn(y, y_pred))
        self.error.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "error": self.error.result()}

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.loss_tracker, self.error]


@feature("train_step overridden, own loss and trackers", GROUP)
def own_trackers(setting: Setting) -> Recipe:
    model = OwnTrackers()
    model.compile(sgd(0.01))
    x, y = inputs(), targets(width=CLASSES)
    return Recipe(
        model,
        fit={"x": batches(x, y), "epochs": 2, "validation_data": batches(x[:17], y[:17])},
        evaluate={"x": batches(x, y, batch=5)},
        predict={"x": x, "batch_size": BATCH},
    )


class Scored(layers.Layer):
    """Adds a loss that depends on its inputs."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * tf.reduce_mean(tf.square(x)))
        return x


@feature("add_loss and activity regularizer", GROUP)
def add_loss(setting: Setting) -> Recipe:
    model = classifier(Scored(), layers.Dense(5, activity_regularizer=keras.regularizers.L2(0.01)))
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    return classify(model, predicts=True)


@feature("Regularizers and weight constraints", GROUP)
def regularizers(setting: Setting) -> Recipe:
    model = classifier(
        layers.Dense(
            8,
            activation="relu",
            kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02),
            kernel_constraint=keras.constraints.MaxNorm(0.7),
            bias_constraint=keras.constraints.NonNeg(),
        )
    )
    model.compile(sgd(0.1), crossentropy(), metrics=["accuracy"])
    return classify(model, predicts=True)


def _words(rows: int) -> np.ndarray:
    return (np.abs(inputs(rows)) * 7).astype("int32")


@feature("Embedding, sparse gradients, momentum", GROUP)
def embedding(setting: Setting) -> Recipe:
    model = keras.Sequential(
        [
            keras.Input((WIDTH,), dtype="int32"),
            layers.Embedding(40, 4),
            layers.GlobalAveragePooling1D(),
            layers.Dense(CLASSES),
        ]
    )
    model.compile(sgd(0.5), crossentropy(), metrics=["accuracy"])
    return Recipe(
        model,
        fit={"x": batches(_words(ROWS), labels(ROWS)), "epochs": 2},
        predict={"x": _words(17), "batch_size": BATCH},
    )


@feature("Embedding, sparse gradients, Adam and global_clipnorm", GROUP)
def embedding_adam(setting: Setting) -> Recipe:
    recipe = embedding(setting)
    recipe.model.compile(keras.optimizers.Adam(0.05, global_clipnorm=0.5), crossentropy())
    recipe.predict = None
    return recipe


@feature("Masks: Embedding(mask_zero), LSTM, an output a time step", GROUP)
def masks(setting: Setting) -> Recipe:
    words = _words(ROWS) % 9
    words[:, 3:] *= np.arange(ROWS)[:, None] % 3 > 0  # many rows end early
    model = keras.Sequential(
        [
            keras.Input((WIDTH,), dtype="int32"),
            layers.Embedding(10, 4, mask_zero=True),
            layers.LSTM(4, return_sequences=True, use_cudnn=False),
            layers.Dense(CLASSES),
        ]
    )
    model.compile(sgd(0.2), crossentropy(), metrics=["accuracy"])
    y = generator().integers(0, CLASSES, (ROWS, WIDTH)).astype("int32")
    return Recipe(
        model,
        fit={"x": batches(words, y), "epochs": 2},
        evaluate={"x": batches(words, y, batch=5)},
        predict={"x": words[:10], "batch_size": BATCH},
    )


@feature("Sequential without an input shape, built on the first batch", GROUP)
def lazily_built(setting: Setting) -> Recipe:
    model = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(CLASSES)])
    model.compile(keras.optimizers.Adam(0.02), crossentropy(), metrics=["accuracy"])
    recipe = classify(model)
    recipe.predict = None
    return recipe


@feature("Frozen layers, then unfrozen and compiled again", GROUP)
def frozen_layers(setting: Setting) -> Recipe:
    frozen = layers.Dense(8, activation="relu", trainable=False)
    statistics = layers.BatchNormalization(trainable=False)
    model = classifier(frozen, statistics)
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    recipe = classify(model)
    recipe.evaluate = recipe.predict = None

    def unfreeze(runner: Any) -> dict[str, Any]:
        frozen.trainable = True
        with model.distribute_strategy.scope():
            model.compile(sgd(0.02), crossentropy(), metrics=["accuracy"])
        history = runner.fit(**recipe.fit, verbose=0)
        return history.history | {str(i): w for i, w in enumerate(model.get_weights())}

    recipe.after = unfreeze
    return recipe


# Four rows of one pixel each are normalised: rounding grows fast, so only losses are compared.
@feature(
    "keras.applications: MobileNet",
    GROUP,
    reference="slices",
    tolerance=1e-3,
    only=("history",),
)
def application(setting: Setting) -> Recipe:
    model = keras.applications.MobileNet(
        (32, 32, 3),
        alpha=0.25,
        dropout=0.0,
        weights=None,
        classes=3,
        classifier_activation=None,
    )
    if setting.reference and setting.slices > 1:
        weights = model.get_weights()
        model = keras.models.clone_model(
            model, clone_function=lambda layer: _sliced(layer, setting.slices)
        )
        model.set_weights(weights)
    model.compile(sgd(1e-4), crossentropy())
    x = generator().normal(size=(8, 32, 32, 3)).astype("float32")
    return Recipe(model, fit={"x": batches(x, labels(8), batch=8), "epochs": 2})


def _sliced(layer: keras.Layer, slices: int) -> keras.Layer:
    if isinstance(layer, layers.BatchNormalization):
        return SlicedBatchNormalization(slices, **layer.get_config())
    return layer.__class__.from_config(layer.get_config())


@feature("Fine-tuning from saved weights", GROUP)
def fine_tuning(setting: Setting) -> Recipe:
    def body() -> keras.Sequential:
        return keras.Sequential(
            [keras.Input((WIDTH,)), layers.Dense(8, activation="relu"), layers.Dense(4)]
        )

    path = setting.folder / "body.weights.h5"
    trained = body()
    rng = generator(3)
    trained.set_weights([rng.normal(size=w.shape) * 0.3 for w in trained.get_weights()])
    trained.save_weights(path)
    base = body()
    base.load_weights(path)
    base.layers[0].trainable = False
    model = keras.Sequential([keras.Input((WIDTH,)), base, layers.Dense(CLASSES)])
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    recipe = classify(model)
    recipe.predict = None
    return recipe


# SpectralNormalization assigns the kernel in the step: its gradient takes another path.
@feature("Attention, layer and spectral normalization", GROUP, one_device=1e-6)
def attention(setting: Setting) -> Recipe:
    tokens = keras.Input((4, WIDTH))
    x = layers.MultiHeadAttention(2, 3)(tokens, tokens)
    x = layers.LayerNormalization()(x + tokens)
    x = layers.SpectralNormalization(layers.Dense(5))(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(tokens, layers.Dense(CLASSES)(x))
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    x = inputs(width=4 * WIDTH).reshape(-1, 4, WIDTH)
    return Recipe(model, fit={"x": batches(x, labels()), "epochs": 2})


@feature("LoRA of Dense and Embedding", GROUP)
def lora(setting: Setting) -> Recipe:
    table = layers.Embedding(40, 4)
    hidden = layers.Dense(8, activation="relu", kernel_initializer=glorot(1))
    model = keras.Sequential(
        [
            keras.Input((WIDTH,), dtype="int32"),
            table,
            layers.GlobalAveragePooling1D(),
            hidden,
            layers.Dense(CLASSES, kernel_initializer=glorot(2)),
        ]
    )
    table.enable_lora(2, a_initializer=glorot(3))
    hidden.enable_lora(2, a_initializer=glorot(4))
    model.compile(sgd(0.5), crossentropy(), metrics=["accuracy"])
    data = batches(_words(ROWS), labels(ROWS))
    return Recipe(
        model,
        fit={"x": data, "epochs": 2},
        evaluate={"x": data},
        predict={"x": _words(17), "batch_size": BATCH},
    )


@feature("Convolutions, group normalization, an adapted Normalization", GROUP)
def convolutions(setting: Setting) -> Recipe:
    adapted = layers.Normalization(axis=-1)
    x = generator().normal(3.0, 2.0, size=(ROWS, 6, 6, 2)).astype("float32")
    adapted.adapt(x)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            adapted,
            layers.Conv2D(4, 3, kernel_initializer=glorot(1)),
            layers.GroupNormalization(2),
            layers.PReLU(shared_axes=[1, 2]),
            layers.SeparableConv2D(4, 2, padding="same"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(CLASSES, kernel_initializer=glorot(2)),
        ]
    )
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    data = batches(x, labels())
    return Recipe(
        model,
        fit={"x": data, "epochs": 2, "validation_data": batches(x[:17], labels()[:17], batch=5)},
        evaluate={"x": data},
        predict={"x": x[:17], "batch_size": BATCH},
    )
