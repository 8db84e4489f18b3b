"""What a feature of the conformance suite is, and where it is run.

A feature is a function from a `Setting` to a `Recipe`: a compiled model, the arguments of `fit`,
and what else to do. The same function is run with Keras' own `fit` on one device, which is the
reference, and with `tfdist.Trainer` under each strategy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategy.kinds import BY_NAME

STRATEGIES = tuple(BY_NAME)
# Strategies whose two replicas step together; a process that is alone has two devices.
TWO_REPLICAS = ("mirrored", "multi_worker_mirrored", "central_storage")

# Six batches; the last has five rows. The others can be halved: plain Keras' fit cannot start
# under MirroredStrategy otherwise.
ROWS, BATCH, WIDTH, CLASSES = 45, 8, 6, 3


@dataclasses.dataclass(frozen=True)
class Setting:
    """Where a feature is run.

    Attributes:
        loop: "tfdist", or "keras" for the model's own `fit`.
        strategy: One of `STRATEGIES`, or "none" for the default strategy.
        slices: In the reference, how many replicas it stands in for where slices matter.
        folder: Where the feature may write files; each task has its own.
        worker: This worker's number, of so many `workers`.
    """

    loop: str
    strategy: str
    folder: Path
    slices: int = 1
    worker: int = 0
    workers: int = 1

    @property
    def trainer(self) -> bool:
        return self.loop == "tfdist"

    @property
    def reference(self) -> bool:
        return self.strategy == "none"

    @property
    def is_chief(self) -> bool:
        return self.worker == 0

    def normalization(self, **arguments: Any) -> keras.Layer:
        """BatchNormalization that normalises each replica's slice."""
        if self.reference and self.slices > 1:
            return SlicedBatchNormalization(self.slices, **arguments)
        return keras.layers.BatchNormalization(**arguments)

    def dropout(self, rate: float, seed: int) -> keras.Layer:
        """Dropout that draws each replica's mask from that replica's seed."""
        if self.reference and self.slices > 1 and rate > 0:
            return SlicedDropout(self.slices, rate, seed=seed)
        return keras.layers.Dropout(rate, seed=seed)


@dataclasses.dataclass
class Recipe:
    """What to run.

    Attributes:
        model: A compiled model.
        fit: Arguments of `fit`.
        trainer: Arguments of `Trainer`.
        evaluate: Arguments of `evaluate`, None not to.
        predict: Arguments of `predict`, None not to.
        after: Called last with the trainer (or, in plain Keras, the model); gives more values
            to compare, by name.
    """

    model: keras.Model
    fit: dict[str, Any]
    trainer: dict[str, Any] = dataclasses.field(default_factory=dict)
    evaluate: dict[str, Any] | None = None
    predict: dict[str, Any] | None = None
    after: Callable[[Any], dict[str, Any]] | None = None


@dataclasses.dataclass(frozen=True)
class Feature:
    """A row of the table.

    Attributes:
        name: Its name in tests.
        title: Its name in the docs.
        group: The heading it stands under.
        make: Gives the recipe; called in the strategy's scope.
        reference: "keras": Keras' fit on one device; "slices": the same, where the layers in
            question compute as many slices as there are replicas; "one_device": tfdist on one
            device, where Keras has no equal (its shuffle draws from another generator);
            "workers": Keras' fit on the global batches of as many workers as there are.
        tolerance: The largest difference allowed under the strategies of several replicas, in
            units of the largest value compared; 0 is bit-equality.
        one_device: The same for one_device.
        asynchronous: Whether parameter_server runs with batches under way on all its workers,
            in no fixed order; else it is made to take them in turn.
        only: Prefixes of the names of the values that are compared, if not all are.
        refused: Strategies that refuse it, with a part of the message.
    """

    name: str
    title: str
    group: str
    make: Callable[[Setting], Recipe]
    reference: str = "keras"
    tolerance: float = 1e-5
    one_device: float = 0.0
    asynchronous: bool = False
    only: tuple[str, ...] = ()
    refused: dict[str, str] = dataclasses.field(default_factory=dict)


FEATURES: dict[str, Feature] = {}


def feature(title: str, group: str, **options: Any) -> Callable[[Any], Any]:
    """Enters a function into the table of features under its own name."""

    def enter(make: Callable[[Setting], Recipe]) -> Callable[[Setting], Recipe]:
        assert make.__name__ not in FEATURES, make.__name__
        FEATURES[make.__name__] = Feature(make.__name__, title, group, make, **options)
        return make

    return enter


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def inputs(rows: int = ROWS, width: int = WIDTH, seed: int = 0) -> np.ndarray:
    return generator(seed).normal(size=(rows, width)).astype("float32")


def labels(rows: int = ROWS, classes: int = CLASSES, seed: int = 1) -> np.ndarray:
    return generator(seed).integers(0, classes, rows).astype("int32")


def targets(rows: int = ROWS, width: int = 1, seed: int = 2) -> np.ndarray:
    return generator(seed).normal(size=(rows, width)).astype("float32")


def batches(*parts: Any, batch: int = BATCH) -> tf.data.Dataset:
    """A dataset of global batches."""
    return tf.data.Dataset.from_tensor_slices(parts).batch(batch)


def classifier(*hidden: keras.Layer, width: int = WIDTH) -> keras.Sequential:
    """A small network with logits for three classes."""
    return keras.Sequential(
        [
            keras.Input((width,)),
            keras.layers.Dense(8, activation="relu", kernel_initializer=glorot(1)),
            *hidden,
            keras.layers.Dense(CLASSES, kernel_initializer=glorot(2)),
        ]
    )


def glorot(seed: int) -> keras.Initializer:
    return keras.initializers.GlorotUniform(seed=seed)


def crossentropy(**arguments: Any) -> keras.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **arguments)


def sgd(rate: float = 0.05, **arguments: Any) -> keras.Optimizer:
    return keras.optimizers.SGD(rate, **({"momentum": 0.9} | arguments))


def classify(
    model: keras.Model, rows: int = ROWS, *, predicts: bool = False, **more: Any
) -> Recipe:
    """Trains a classifier for two epochs, with validation and evaluation, and predictions."""
    data = batches(inputs(rows), labels(rows))
    held_out = batches(inputs(17, seed=5), labels(17, seed=6))
    return Recipe(
        model,
        fit={"x": data, "epochs": 2, "validation_data": held_out, **more},
        evaluate={"x": held_out},
        predict={"x": inputs(17, seed=5), "batch_size": BATCH} if predicts else None,
    )


class SlicedBatchNormalization(keras.layers.BatchNormalization):
    """What N replicas with BatchNormalization compute, on one device."""

    def __init__(self, slices: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._slices = slices

    def call(self, inputs: tf.Tensor, training: Any = None, mask: Any = None) -> tf.Tensor:
        if not training:
            return super().call(inputs, training=training)
        rows = tf.shape(inputs)[0]
        old = [tf.convert_to_tensor(v) for v in (self.moving_mean, self.moving_variance)]
        new = [tf.zeros_like(value) for value in old]
        parts = []
        for number in range(self._slices):
            part = inputs[number * rows // self._slices : (number + 1) * rows // self._slices]
            mean, variance = tf.nn.moments(part, list(range(part.shape.rank - 1)))
            part = (part - mean) * tf.math.rsqrt(variance + self.epsilon)
            part = part * self.gamma if self.scale else part
            parts.append(part + self.beta if self.center else part)
            share = tf.cast(tf.shape(part)[0], part.dtype) / tf.cast(rows, part.dtype)
            for i, statistic in enumerate((mean, variance)):
                moved = old[i] * self.momentum + statistic * (1.0 - self.momentum)
                new[i] += tf.where(share > 0, share * moved, tf.zeros_like(moved))
        self.moving_mean.assign(new[0])
        self.moving_variance.assign(new[1])
        return tf.concat(parts, axis=0)


class SlicedDropout(keras.layers.Dropout):
    """What N replicas with Dropout compute, on one device."""

    def __init__(self, slices: int, rate: float, **arguments: Any) -> None:
        super().__init__(rate, **arguments)
        self._slices = slices

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        if not training:
            return inputs
        rows = tf.shape(inputs)[0]
        seed = self.seed_generator.next()
        parts = []
        for number in range(self._slices):
            part = inputs[number * rows // self._slices : (number + 1) * rows // self._slices]
            own = seed + tf.constant([number * 0x9E3779B1, 0], seed.dtype)
            own = tf.cast(tf.math.floormod(own, tf.int32.max - 1), tf.int32)
            parts.append(tf.nn.experimental.stateless_dropout(part, self.rate, seed=own))
        return tf.concat(parts, axis=0)
