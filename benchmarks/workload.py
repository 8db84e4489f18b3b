"""What the benchmarks train: ResNet50 or a small network, on examples drawn once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

BATCH = 32
LEARNING_RATE = 0.01


def rows(model: str, batches: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Returns drawn examples for some batches of a worker."""
    random = np.random.default_rng(0)
    shape = (16,) if model == "small" else (32, 32, 3)
    x = random.normal(size=(BATCH * batches, *shape)).astype("float32")
    return x, random.integers(0, 10, BATCH * batches).astype("int32")


def data(model: str, workers: int = 1) -> Any:
    """Returns endless global batches, in memory."""
    import tensorflow as tf

    x, y = rows(model, workers)
    return tf.data.Dataset.from_tensors((tf.constant(x), tf.constant(y))).repeat()


def make_model(name: str, optimizer: str = "sgd") -> Any:
    """Returns the model that is trained, compiled.

    Args:
        name: "resnet50", "resnet50_synchronized" (its BatchNormalization) or "small".
        optimizer: "sgd" or "adamw".
    """
    import keras

    import tfdist

    if name != "small":
        model = tfdist.models.resnet50(
            (32, 32, 3), 10, synchronized_batch_norm=name == "resnet50_synchronized"
        )
    else:
        layers = keras.layers
        model = keras.Sequential(
            [keras.Input((16,)), layers.Dense(64, activation="relu"), layers.Dense(10)]
        )
    model.compile(optimizer_of(keras, optimizer), loss_of(keras, name))
    return model


def optimizer_of(keras: Any, name: str) -> Any:
    """Returns an optimizer of Keras, or of tf-keras."""
    if name == "adamw":
        return keras.optimizers.AdamW(LEARNING_RATE)
    return keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)


def loss_of(keras: Any, model: str) -> Any:
    """Returns a model's loss, of Keras or of tf-keras."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=model == "small")


def fit_seconds(
    fit: Callable[..., Any], callback_class: Any, data: Any, *, warm_up: int, steps: int
) -> float:
    """Fits at least `warm_up` steps, and then an epoch of `steps`; returns the epoch's seconds.

    Args:
        fit: The `fit` of Keras, of tf-keras or of a Trainer.
        callback_class: The base class of that Keras' callbacks.
        data: Endless batches.
        warm_up: Steps before the clock starts.
        steps: Steps on the clock.
    """
    times: list[float] = []

    class Clock(callback_class):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            times.append(time.perf_counter())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            times.append(time.perf_counter())

    epochs = 1 + -(-warm_up // steps)
    fit(data, epochs=epochs, steps_per_epoch=steps, verbose=0, callbacks=[Clock()])
    return times[-1] - times[-2]
