"""Images: what is learned from another model, from mixed labels, or from patches left out."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tests.training.conformance.setting import Recipe, Setting, batches, generator
from tests.training.programs.program import images, program


def _network(width: int) -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(width, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.MaxPooling2D(2, strides=1, padding="same"),
            layers.Conv2D(2 * width, 3, strides=2, padding="same"),
            layers.Flatten(),
            layers.Dense(4),
        ]
    )


class Distiller(keras.Model):
    """A student that learns labels and what its teacher says, in compute_loss."""

    def __init__(self, student: keras.Model, teacher: keras.Model) -> None:
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(self, optimizer: Any, metrics: Any, alpha: float, temperature: float) -> None:
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.distillation_loss_fn = keras.losses.KLDivergence()
        self.alpha = alpha
        self.temperature = temperature

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        told = self.teacher(x, training=False)
        own = self.student_loss_fn(y, y_pred)
        taught = self.distillation_loss_fn(
            ops.softmax(told / self.temperature, axis=1),
            ops.softmax(y_pred / self.temperature, axis=1),
        ) * (self.temperature**2)
        return self.alpha * own + (1 - self.alpha) * taught

    def call(self, x: Any) -> Any:
        return self.student(x)


@program("vision/knowledge_distillation", "compute_loss of a model that holds two others")
def knowledge_distillation(setting: Setting) -> Recipe:
    model = Distiller(student=_network(4), teacher=_network(8))
    model.teacher.trainable = False
    model.compile(
        keras.optimizers.Adam(),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
        alpha=0.1,
        temperature=10,
    )
    pixels, labels = images(40)
    return Recipe(
        model,
        fit={"x": pixels, "y": labels, "batch_size": 16, "epochs": 2, "shuffle": False},
        evaluate={"x": pixels, "y": labels},
        predict={"x": pixels},
    )


class SelfTrainer(keras.Model):
    """A student that sees noisy images, and a teacher that sees the clean ones."""

    def __init__(self, student: keras.Model, teacher: keras.Model) -> None:
        super().__init__()
        self.student = student
        self.teacher = teacher

    def compile(self, optimizer: Any, metrics: Any, temperature: float) -> None:
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.distillation_loss_fn = keras.losses.KLDivergence()
        self.temperature = temperature

    def train_step(self, data: Any) -> dict[str, Any]:
        (clean, _), (noisy, y) = data
        told = self.teacher(clean, training=False)
        with tf.GradientTape() as tape:
            said = self.student(noisy, training=True)
            taught = self.distillation_loss_fn(
                tf.nn.softmax(told / self.temperature, axis=1),
                tf.nn.softmax(said / self.temperature, axis=1),
            )
            total = (self.student_loss_fn(y, said) + taught) / 2
        weights = self.student.trainable_variables
        gradients = tape.gradient(total, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self._compile_metrics.update_state(y, tf.nn.softmax(said, axis=1))
        results = self.get_metrics_result()
        results.update({"total_loss": total})
        return results

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        said = self.student(x, training=False)
        self._compile_metrics.update_state(y, tf.nn.softmax(said, axis=1))
        return self.get_metrics_result()


@program(
    "vision/consistency_training",
    "zipped datasets, a train_step that returns its loss beside the metrics, callbacks that "
    "watch val_accuracy",
    # Keras' optimizer has no variables for the teacher, which the step never trains.
    only=("history", "weight", "evaluate"),
)
def consistency_training(setting: Setting) -> Recipe:
    model = SelfTrainer(student=_network(4), teacher=_network(8))
    model.compile("adam", ["accuracy"], temperature=10)
    clean, labels = images(40)
    noisy = clean + 0.1 * generator(2).normal(size=clean.shape).astype("float32")
    zipped = tf.data.Dataset.zip((batches(clean, labels), batches(noisy, labels)))
    held_out = batches(clean[:16], labels[:16])
    reduce = keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5, monitor="val_accuracy")
    stop = keras.callbacks.EarlyStopping(
        patience=10, restore_best_weights=True, monitor="val_accuracy"
    )
    return Recipe(
        model,
        fit={"x": zipped, "epochs": 3, "validation_data": held_out, "callbacks": [reduce, stop]},
        evaluate={"x": held_out},
    )


def _mixed(one: Any, other: Any) -> Any:
    """Two batches mixed in shares that are drawn for each pair of rows."""
    rows = tf.shape(one[0])[0]
    first, second = (tf.random.gamma((rows,), 0.2) + 1e-6 for _ in range(2))
    share = first / (first + second)
    pixels = tf.reshape(share, (rows, 1, 1, 1))
    classes = tf.reshape(share, (rows, 1))
    return (
        one[0] * pixels + other[0] * (1 - pixels),
        one[1] * classes + other[1] * (1 - classes),
    )


@program(
    "vision/mixup",
    "shuffled datasets, zipped, mixed in shares that tf.data draws; no seed of their own",
    reference="slices",
)
def mixup(setting: Setting) -> Recipe:
    pixels, labels = images(40)
    targets = keras.utils.to_categorical(labels, 4).astype("float32")
    rows = tf.data.Dataset.from_tensor_slices((pixels, targets))
    sides = [rows.shuffle(40).batch(8) for _ in range(2)]
    mixed = tf.data.Dataset.zip(tuple(sides)).map(_mixed)
    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(8, 5, strides=2, activation="relu", padding="same"),
            layers.Conv2D(8, 5, strides=2, activation="relu", padding="same"),
            setting.dropout(0.2, seed=3),
            layers.GlobalAveragePooling2D(),
            layers.Dense(16, activation="relu"),
            layers.Dense(4, activation="softmax"),
        ]
    )
    model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
    held_out = batches(pixels[:16], targets[:16])
    return Recipe(
        model,
        fit={"x": mixed, "validation_data": held_out, "epochs": 2},
        evaluate={"x": held_out},
        predict={"x": pixels},
    )
