"""Images compared with each other: pairs, triplets, and contrasts within a batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.training.conformance.setting import Recipe, Setting, batches
from tests.training.programs.program import images, program


def _encoder(width: int = 16) -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(8, 3, strides=2, activation="relu"),
            layers.Conv2D(8, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(width, activation="relu"),
        ]
    )


def _contrast(y_true: Any, y_pred: Any) -> Any:
    """Draws alike pairs together, and pushes others at least one apart; one number of a batch."""
    alike = ops.square(y_pred)
    others = ops.square(ops.maximum(1.0 - y_pred, 0))
    return ops.mean((1 - y_true) * alike + y_true * others)


@program(
    "vision/siamese_contrastive",
    "one network on two inputs, a Lambda layer, BatchNormalization, a loss function of one number",
    reference="slices",
    dtype="float64",
)
def siamese_contrastive(setting: Setting) -> Recipe:
    inputs = keras.Input((12, 12, 1))
    x = setting.normalization()(inputs)
    for filters in (4, 8):
        x = layers.Conv2D(filters, 3, activation="tanh")(x)
        x = layers.AveragePooling2D(2)(x)
    x = setting.normalization()(layers.Flatten()(x))
    tower = keras.Model(inputs, layers.Dense(10, activation="tanh")(x))
    left, right = keras.Input((12, 12, 1)), keras.Input((12, 12, 1))
    apart = layers.Lambda(
        lambda pair: ops.sqrt(
            ops.maximum(
                ops.sum(ops.square(pair[0] - pair[1]), axis=1, keepdims=True),
                keras.backend.epsilon(),
            )
        ),
        output_shape=(1,),
    )([tower(left), tower(right)])
    model = keras.Model([left, right], layers.Dense(1, activation="sigmoid")(apart))
    model.compile(loss=_contrast, optimizer="RMSprop", metrics=["accuracy"])
    pixels, labels = images(96)
    pairs = [pixels[:48], pixels[48:]]
    y = (labels[:48] != labels[48:]).astype("float32")
    held_out = ([side[:16] for side in pairs], y[:16])
    return Recipe(
        model,
        fit={
            "x": pairs,
            "y": y,
            "batch_size": 16,
            "epochs": 2,
            "validation_data": held_out,
            "shuffle": False,
        },
        evaluate={"x": held_out[0], "y": held_out[1]},
        predict={"x": pairs},
    )


class Distances(layers.Layer):
    """How far an anchor is from its positive and from its negative."""

    def call(self, anchor: Any, positive: Any, negative: Any) -> Any:
        return (
            ops.sum(tf.square(anchor - positive), -1),
            ops.sum(tf.square(anchor - negative), -1),
        )


class Triplets(keras.Model):
    """Trains a network of triplets with a step of its own; its loss has a margin."""

    def __init__(self, network: keras.Model, margin: float = 0.5) -> None:
        super().__init__()
        self.network = network
        self.margin = margin
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs: Any) -> Any:
        return self.network(inputs)

    def _loss(self, data: Any) -> Any:
        near, far = self.network(data)
        return tf.maximum(near - far + self.margin, 0.0)

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = self._loss(data)
        weights = self.network.trainable_weights
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data: Any) -> dict[str, Any]:
        self.tracker.update_state(self._loss(data))
        return {"loss": self.tracker.result()}

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.tracker]


@program(
    "vision/siamese_network",
    "a train_step and a test_step whose loss has a value for each triplet, frozen layers",
    dtype="float64",
)
def siamese_network(setting: Setting) -> Recipe:
    encoder = _encoder()
    encoder.layers[0].trainable = False
    inputs = [keras.Input((12, 12, 1), name=name) for name in ("anchor", "positive", "negative")]
    network = keras.Model(inputs, Distances()(*(encoder(each) for each in inputs)))
    model = Triplets(network)
    model.compile(optimizer=keras.optimizers.Adam(0.0001), weighted_metrics=[])
    pixels, _ = images(120)
    dataset = tf.data.Dataset.zip(
        tuple(tf.data.Dataset.from_tensor_slices(part) for part in np.split(pixels, 3))
    ).batch(16, drop_remainder=False)
    return Recipe(
        model, fit={"x": dataset, "epochs": 2, "validation_data": dataset.take(1)}, evaluate=None
    )


class SupervisedContrastiveLoss(keras.losses.Loss):
    """Makes vectors of one class alike: compares each row of a batch with all others."""

    def __init__(self, temperature: float = 0.5, name: str | None = None) -> None:
        super().__init__(name=name)
        self.temperature = temperature

    def call(self, labels: Any, vectors: Any, sample_weight: Any = None) -> Any:
        unit = keras.utils.normalize(vectors, axis=1, order=2)
        alike = ops.matmul(unit, ops.transpose(unit)) / self.temperature
        same = ops.cast(ops.equal(labels, ops.transpose(labels)), "float32")
        wanted = same / ops.sum(same, axis=1, keepdims=True)
        return -ops.mean(ops.sum(wanted * ops.log_softmax(alike, axis=1), axis=1))


@program(
    "vision/supervised-contrastive-learning",
    "a Loss that compares all rows of a batch; the trained encoder is frozen, a head fitted",
    reference="slices",
)
def supervised_contrastive_learning(setting: Setting) -> Recipe:
    encoder = _encoder()
    inputs = keras.Input((12, 12, 1))
    model = keras.Model(inputs, layers.Dense(8, activation="relu")(encoder(inputs)))
    model.compile(keras.optimizers.Adam(0.001), SupervisedContrastiveLoss(0.05))
    pixels, labels = images(40)
    y = labels[:, None]

    def classify(runner: Any) -> dict[str, Any]:
        with model.distribute_strategy.scope():
            for layer in encoder.layers:
                layer.trainable = False
            features = setting.dropout(0.5, seed=7)(encoder(inputs, training=False))
            head = keras.Model(inputs, layers.Dense(4, activation="softmax")(features))
            head.compile(
                keras.optimizers.Adam(0.001),
                keras.losses.SparseCategoricalCrossentropy(),
                metrics=[keras.metrics.SparseCategoricalAccuracy()],
            )
        fits: Any = head
        if setting.trainer:
            import tfdist

            fits = tfdist.Trainer(head)
        history = fits.fit(pixels, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return history.history | {"classes": fits.predict(pixels, verbose=0)}

    return Recipe(
        model,
        fit={"x": pixels, "y": y, "batch_size": 16, "epochs": 2, "shuffle": False},
        predict={"x": pixels},
        after=classify,
    )


class MetricLearner(keras.Model):
    """Tells, for the anchor of each class, which positive is of the same class."""

    def train_step(self, data: Any) -> dict[str, Any]:
        pairs = data[0] if isinstance(data, tuple) else data
        anchors, positives = pairs[0], pairs[1]
        with tf.GradientTape() as tape:
            alike = tf.einsum(
                "ae,pe->ap", self(anchors, training=True), self(positives, training=True)
            )
            classes = tf.range(4)
            loss = self.compute_loss(y=classes, y_pred=alike / 0.2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(classes, alike)
        return {metric.name: metric.result() for metric in self.metrics}


class AnchorsAndPositives(keras.utils.PyDataset):
    """Batches of two images of each class: the first dimension is no batch's."""

    def __init__(self, count: int) -> None:
        super().__init__()
        pixels, labels = images(64)
        self._of_class = [pixels[labels == number] for number in range(4)]
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return np.stack(
            [
                np.stack([own[(2 * index + side) % len(own)] for own in self._of_class])
                for side in range(2)
            ]
        )


DIVIDED = "the first dimension of the data is divided among 2 replicas"


@program(
    "vision/metric_learning",
    "a PyDataset of batches whose first dimension is no batch's",
    refused={"mirrored": DIVIDED, "multi_worker_mirrored": DIVIDED},
)
def metric_learning(setting: Setting) -> Recipe:
    inputs = keras.Input((12, 12, 1))
    x = layers.Conv2D(8, 3, strides=2, activation="relu")(inputs)
    x = layers.Conv2D(8, 3, strides=2, activation="relu")(x)
    x = layers.Dense(8)(layers.GlobalAveragePooling2D()(x))
    model = MetricLearner(inputs, layers.UnitNormalization()(x))
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate=1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return Recipe(model, fit={"x": AnchorsAndPositives(6), "epochs": 2, "shuffle": False})


class ContrastiveModel(keras.Model):
    """Learns from unlabelled pairs what differs between a batch's rows; probes with labels."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _encoder()
        self.projection = keras.Sequential(
            [keras.Input((16,)), layers.Dense(16, activation="relu"), layers.Dense(16)]
        )
        self.probe = keras.Sequential([keras.Input((16,)), layers.Dense(4)])

    def compile(self, contrastive_optimizer: Any, probe_optimizer: Any, **options: Any) -> None:
        super().compile(**options)
        self.contrastive_optimizer = contrastive_optimizer
        self.probe_optimizer = probe_optimizer
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.c_loss = keras.metrics.Mean(name="c_loss")
        self.c_acc = keras.metrics.SparseCategoricalAccuracy(name="c_acc")
        self.p_loss = keras.metrics.Mean(name="p_loss")
        self.p_acc = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.c_loss, self.c_acc, self.p_loss, self.p_acc]

    def _contrastive_loss(self, one: Any, other: Any) -> Any:
        one, other = (tf.math.l2_normalize(side, axis=1) for side in (one, other))
        alike = tf.matmul(one, other, transpose_b=True) / 0.1
        own = tf.range(tf.shape(one)[0])
        losses = []
        for logits in (alike, tf.transpose(alike)):
            self.c_acc.update_state(own, logits)
            losses.append(
                keras.losses.sparse_categorical_crossentropy(own, logits, from_logits=True)
            )
        return (losses[0] + losses[1]) / 2

    def train_step(self, data: Any) -> dict[str, Any]:
        (first, second), (labelled, labels) = data
        with tf.GradientTape() as tape:
            sides = [self.projection(self.encoder(side)) for side in (first, second)]
            loss = self._contrastive_loss(*sides)
        weights = self.encoder.trainable_weights + self.projection.trainable_weights
        gradients = tape.gradient(loss, weights)
        self.contrastive_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.c_loss.update_state(loss)
        with tf.GradientTape() as tape:
            logits = self.probe(self.encoder(labelled, training=False), training=True)
            loss = self.probe_loss(labels, logits)
        weights = self.probe.trainable_weights
        gradients = tape.gradient(loss, weights)
        self.probe_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.p_loss.update_state(loss)
        self.p_acc.update_state(labels, logits)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data: Any) -> dict[str, Any]:
        pixels, labels = data
        logits = self.probe(self.encoder(pixels, training=False), training=False)
        self.p_loss.update_state(self.probe_loss(labels, logits))
        self.p_acc.update_state(labels, logits)
        return {metric.name: metric.result() for metric in self.metrics[2:]}


@program(
    "vision/semisupervised_simclr",
    "a train_step with two optimizers and a contrast between all rows, written by hand",
    only=("history", "weight"),
    differs=dict.fromkeys(
        ("mirrored", "multi_worker_mirrored"),
        "the contrast is written in the step, which is given a replica's slice; as a "
        "`keras.losses.Loss` it is computed on all rows (supervised-contrastive-learning); a "
        "warning says so",
    ),
)
def semisupervised_simclr(setting: Setting) -> Recipe:
    model = ContrastiveModel()
    model.compile(
        contrastive_optimizer=keras.optimizers.Adam(), probe_optimizer=keras.optimizers.Adam()
    )
    pixels, labels = images(48)
    # The two views come augmented: layers that augment at random draw on each replica.
    views = (np.roll(pixels, 1, axis=1), pixels[:, :, ::-1].copy())
    dataset = batches(views, (pixels, labels), batch=16)
    held_out = batches(pixels[:16], labels[:16], batch=16)
    return Recipe(model, fit={"x": dataset, "epochs": 2, "validation_data": held_out})
