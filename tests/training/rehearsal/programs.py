"""Programs that mix the rows of a batch, or do not: drawn from a grammar, or one by one."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st
from keras import ops

ROWS, WIDTH, BATCH = 22, 3, 8


class Between(keras.layers.Layer):
    """A layer of the user's: a function of the outputs of the one before."""

    def __init__(self, function: str) -> None:
        super().__init__()
        self.function = function
        self.noise = keras.random.SeedGenerator(3)
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.scale * FUNCTIONS[self.function](self, x, training)


def _only_in_training(layer: Between, x: Any, training: bool) -> Any:
    return x - ops.mean(x, 0, keepdims=True) if training else x


def _added(of_batch: Any) -> Any:
    def between(layer: Between, x: Any, training: bool) -> Any:
        layer.add_loss(of_batch(x))
        return x

    return between


FUNCTIONS: dict[str, Any] = {
    "tanh": lambda layer, x, training: ops.tanh(x),
    "by feature": lambda layer, x, training: x - ops.mean(x, -1, keepdims=True),
    "noise": lambda layer, x, training: (
        x + 0.1 * keras.random.normal(ops.shape(x), seed=layer.noise)
    ),
    "centred": lambda layer, x, training: x - ops.mean(x, 0, keepdims=True),
    "centred in training": _only_in_training,
    "largest": lambda layer, x, training: x / (1.0 + ops.max(ops.abs(x), 0)),
    "softmax of rows": lambda layer, x, training: ops.softmax(x, axis=0),
    "others": lambda layer, x, training: x + ops.matmul(ops.matmul(x, ops.transpose(x)), x) / 50.0,
    "add_loss sum": _added(lambda x: 1e-2 * ops.sum(ops.square(x))),
    "add_loss mean": _added(lambda x: 1e-1 * ops.mean(ops.square(x))),
    "add_loss of means": _added(lambda x: ops.sum(ops.square(ops.mean(x, 0)))),
    "add_loss by example": _added(lambda x: 1e-2 * ops.sum(ops.square(x), -1)),
}


def cox(y_true: Any, y_pred: Any) -> Any:
    risk = ops.cast(y_true[:, :1] >= ops.transpose(y_true[:, :1]), y_pred.dtype)
    total = ops.sum(risk * ops.exp(ops.transpose(y_pred)), 1)
    return ops.cast(y_true[:, 0] > 0, y_pred.dtype) * (ops.log(total) - y_pred[:, 0])


def squares(y_true: Any, y_pred: Any) -> Any:
    return ops.mean(ops.square(y_true - y_pred), -1)


LOSSES: dict[str, Any] = {
    "mse": "mse",
    "own by row": squares,
    "own number": lambda y_true, y_pred: ops.mean(squares(y_true, y_pred)),
    "cox": cox,
    "log of mean": lambda y_true, y_pred: ops.log(1.0 + ops.mean(squares(y_true, y_pred))),
}

# What a model's own compute_loss or train_step makes of the values of the rows.
OF_ROWS: dict[str, Any] = {
    "mean": lambda v, x: tf.reduce_mean(v),
    "sum": lambda v, x: tf.reduce_sum(v),
    "sum by a number": lambda v, x: tf.reduce_sum(v) / BATCH,
    "valid": lambda v, x: (
        tf.reduce_sum(v * tf.cast(x[:, 0] > 0, v.dtype))
        / (1.0 + tf.reduce_sum(tf.cast(x[:, 0] > 0, v.dtype)))
    ),
    "largest": lambda v, x: tf.reduce_max(v),
    "spread": lambda v, x: tf.math.reduce_std(v) + tf.reduce_mean(v),
    "pairs": lambda v, x: tf.reduce_mean(tf.abs(v[:, None] - v[None])) + tf.reduce_mean(v),
}
LOGS: dict[str, Any] = {
    "mean": lambda v: tf.reduce_mean(v),
    "count": lambda v: tf.reduce_sum(tf.cast(v > 0.1, tf.float32)),
    "largest": lambda v: tf.reduce_max(v),
    "deviation": lambda v: tf.math.reduce_std(v),
}


class Own(keras.Model):
    """A model with a step or a loss of its own."""

    def __init__(self, body: Any, program: Program) -> None:
        super().__init__()
        self.body = body
        self.program = program
        self.tracker = keras.metrics.Mean(name="tracked")

    def build(self, shape: Any) -> None:
        self.body.build(shape)
        self.built = True

    def call(self, x: Any, training: bool = False) -> Any:
        return self.body(x, training=training)

    def values(self, y: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.square(y - y_pred), -1)


class OwnLoss(Own):
    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        return OF_ROWS[self.program.of_rows](self.values(y, y_pred), x)


class OwnStep(Own):
    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            values = self.values(y, self(x, training=True))
            loss = OF_ROWS[self.program.of_rows](values, x)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)  # One number for the batch.
        return {"l": loss, "own": LOGS[self.program.log](values)}


@dataclasses.dataclass(frozen=True)
class Program:
    """A program: what it is made of, by name."""

    layers: tuple[str, ...] = ()
    loss: str = "mse"
    own: str = "keras"
    of_rows: str = "mean"
    log: str = "mean"
    activity: str = ""
    eager: bool = False
    seed: int = 0

    def made(self) -> keras.Model:
        """Returns the model, built and compiled."""
        keras.utils.set_random_seed(self.seed)
        regularizer = {"": None, "batch": _of_batch, "l2": keras.regularizers.L2(1e-2)}
        body = keras.Sequential(
            [
                keras.Input((WIDTH,)),
                keras.layers.Dense(4, activity_regularizer=regularizer[self.activity]),
                *(Between(name) for name in self.layers),
                keras.layers.Dense(1),
            ]
        )
        kinds: dict[str, Any] = {"loss": OwnLoss, "step": OwnStep}
        model = kinds[self.own](body, self) if self.own in kinds else body
        if model is not body:
            model.build((None, WIDTH))
        model.compile(keras.optimizers.SGD(0.05), LOSSES[self.loss], run_eagerly=self.eager)
        return model

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows and targets."""
        random = np.random.default_rng(self.seed)
        x = random.normal(size=(ROWS, WIDTH)).astype("float32")
        return x, (x.sum(1, keepdims=True) + random.normal(size=(ROWS, 1))).astype("float32")


def _of_batch(outputs: Any) -> Any:
    return 0.1 * ops.sum(ops.square(ops.mean(outputs, 0)))


@st.composite
def programs(draw: Any) -> Program:
    """Draws a program."""
    own = draw(st.sampled_from(["keras", "keras", "loss", "step"]))
    return Program(
        layers=tuple(draw(st.lists(st.sampled_from(list(FUNCTIONS)), max_size=2))),
        loss=draw(st.sampled_from(list(LOSSES))) if own == "keras" else "mse",
        own=own,
        of_rows=draw(st.sampled_from(list(OF_ROWS))) if own != "keras" else "mean",
        log=draw(st.sampled_from(list(LOGS))) if own == "step" else "mean",
        activity=draw(st.sampled_from(["", "", "batch", "l2"])),
        eager=draw(st.sampled_from([False, False, False, True])),
        seed=draw(st.integers(0, 99)),
    )
