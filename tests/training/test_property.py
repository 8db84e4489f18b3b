"""Whatever model, loss, masks, weights and batches are drawn: replicas compute what Keras does.

A drawn program is trained by plain Keras, by the Trainer on one device, whose numbers are the same
bits, and by the Trainer on two replicas, whose sums are made of two partial sums (float32: 2e-5 of
the largest value). A strategy may refuse a program with a ConfigError; one device may not.

`make fuzz` draws many (TFDIST_FUZZ=N); `make test` a few, always the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, note, reject
from hypothesis import strategies as st

import tfdist
from tests.drawn import drawn
from tfdist.errors import ConfigError

TOLERANCE = 2e-5
# More steps than rows in a batch: where they are as many, Keras multiplies weights of examples by
# the mask of steps without noticing.
STEPS, WORDS, WIDTH, CLASSES = 9, 6, 5, 3


@dataclasses.dataclass(frozen=True)
class Program:
    """A drawn program."""

    body: str
    head: str
    loss: str
    reduction: str
    regularized: bool
    metrics: tuple[str, ...]
    weighted: str
    optimizer: str
    rows: int
    batch: int
    epochs: int
    validated: int
    seed: int

    def data(self) -> tuple[Any, Any, Any]:
        generator = np.random.default_rng(self.seed)
        if self.body == "sequence":
            x = generator.integers(0, WORDS, (self.rows, STEPS)).astype("int32")
            x[:, 0] = np.maximum(x[:, 0], 1)  # No row is wholly masked.
            shape: tuple[int, ...] = (self.rows, STEPS)
        else:
            x = generator.normal(size=(self.rows, WIDTH)).astype("float32")
            shape = (self.rows,)
        if self.head == "classes":
            y = generator.integers(0, CLASSES, shape).astype("int32")
        else:
            y = generator.uniform(0.05, 0.95, (*shape, 1)).astype("float32")
        weight = None
        if self.weighted == "examples":
            weight = generator.uniform(0.1, 2.0, self.rows).astype("float32")
        elif self.weighted == "some zero":
            weight = (generator.uniform(size=self.rows) > 0.4).astype("float32")
        return x, y, weight

    def model(self) -> keras.Model:
        keras.utils.set_random_seed(self.seed)
        regularizer = keras.regularizers.L2(0.01) if self.regularized else None
        if self.body == "sequence":
            inputs = keras.Input((STEPS,), dtype="int32")
            x = keras.layers.Embedding(WORDS, 4, mask_zero=True)(inputs)
            x = keras.layers.Dense(4, "tanh", activity_regularizer=regularizer)(x)
        else:
            inputs = keras.Input((WIDTH,))
            x = keras.layers.Dense(6, "relu", kernel_regularizer=regularizer)(inputs)
            if self.body == "normalized":
                x = keras.layers.BatchNormalization(synchronized=True, momentum=0.5)(x)
        outputs = keras.layers.Dense(CLASSES if self.head == "classes" else 1)(x)
        model = keras.Model(inputs, outputs)
        model.compile(
            _optimizer(self.optimizer),
            _loss(self.loss, self.reduction),
            metrics=list(self.metrics),
            weighted_metrics=["mse"] if self.head == "values" else None,
        )
        return model

    def run(self, scope: Any, trainer: bool) -> dict[str, np.ndarray]:
        x, y, weight = self.data()
        with scope:
            model = self.model()
        runner = tfdist.Trainer(model) if trainer else model
        parts = (x, y) if weight is None else (x, y, weight)
        data = tf.data.Dataset.from_tensor_slices(parts).batch(self.batch)
        held_out = None
        if self.validated:
            held_out = tf.data.Dataset.from_tensor_slices((x, y)).take(self.validated).batch(4)
        history = runner.fit(
            data, epochs=self.epochs, shuffle=False, verbose=0, validation_data=held_out
        )
        values = {name: np.asarray(numbers) for name, numbers in history.history.items()}
        values |= {f"weight {i}": w for i, w in enumerate(model.get_weights())}
        values |= runner.evaluate(data, verbose=0, return_dict=True)
        values["predictions"] = runner.predict(x, batch_size=self.batch, verbose=0)
        return {name: np.asarray(value) for name, value in values.items()}


def _optimizer(name: str) -> keras.Optimizer:
    if name == "clipped":
        return keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.5)
    if name == "adamw":
        # With its own epsilon a gradient that is zero but for rounding, as of what stands ahead of
        # BatchNormalization of two rows, moves a weight by the whole rate.
        return keras.optimizers.AdamW(0.02, weight_decay=0.02, epsilon=1e-2)
    return keras.optimizers.SGD(0.05)


def _loss(name: str, reduction: str) -> keras.Loss:
    if name == "crossentropy":
        kind = keras.losses.SparseCategoricalCrossentropy
        return kind(from_logits=True, reduction=reduction)
    if name == "crossentropy, a class ignored":
        kind = keras.losses.SparseCategoricalCrossentropy
        return kind(from_logits=True, ignore_class=0, reduction=reduction)
    return {
        "mse": keras.losses.MeanSquaredError,
        "huber": keras.losses.Huber,
        "logcosh": keras.losses.LogCosh,
    }[name](reduction=reduction)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    head = draw(st.sampled_from(["classes", "values"]))
    losses = {
        "classes": ["crossentropy", "crossentropy, a class ignored"],
        "values": ["mse", "huber", "logcosh"],
    }[head]
    metrics = {"classes": ["accuracy"], "values": ["mae", "cosine_similarity"]}[head]
    return Program(
        body=draw(st.sampled_from(["plain", "normalized", "sequence"])),
        head=head,
        loss=draw(st.sampled_from(losses)),
        reduction=draw(st.sampled_from(["sum_over_batch_size", "sum"])),
        regularized=draw(st.booleans()),
        metrics=tuple(draw(st.lists(st.sampled_from(metrics), unique=True, max_size=2))),
        weighted=draw(st.sampled_from(["not", "examples", "some zero"])),
        optimizer=draw(st.sampled_from(["sgd", "clipped", "adamw"])),
        rows=draw(st.integers(2, 21)),
        batch=draw(st.integers(2, 8)),
        epochs=draw(st.integers(1, 2)),
        validated=draw(st.sampled_from([0, 1, 5])),
        seed=draw(st.integers(0, 99)),
    )


@drawn
@given(program=programs())
# A replica without rows took part in the gradient of synchronized statistics.
@example(
    program=Program("normalized", "values", "mse", "sum", False, (), "not", "sgd", 5, 4, 1, 0, 42)
)
@example(
    program=Program("normalized", "values", "mse", "sum", False, (), "not", "adamw", 2, 2, 2, 0, 2)
)
def test_replicas_compute_what_keras_does(devices, program):
    note(str(program))
    try:
        expected = program.run(contextlib.nullcontext(), trainer=False)
    except (ValueError, tf.errors.OpError):
        reject()  # Keras does not take it.
    one = program.run(tfdist.one_device_strategy(devices[0]).scope(), trainer=True)
    assert list(one) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(one[name], value, name)
    try:
        two = program.run(tfdist.mirrored_strategy(devices[:2]).scope(), trainer=True)
    except ConfigError as error:
        note(f"refused: {error}")
        return
    assert list(two) == list(expected)
    for name, value in expected.items():
        scale = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(two[name], value, rtol=0, atol=TOLERANCE * scale, err_msg=name)


def test_a_wrong_weight_is_found(devices, monkeypatch):
    """The comparison can fail: a slice that counts for too much is seen."""
    from tfdist.training.loops import select

    def wrong(count: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        return 1.01 * tf.cast(count, tf.float32) / tf.cast(rows, tf.float32)

    monkeypatch.setattr(select, "by_batch", wrong)
    program = Program(
        "plain", "values", "mse", "sum_over_batch_size", False, (), "not", "sgd", 9, 4, 1, 0, 3
    )
    expected = program.run(contextlib.nullcontext(), trainer=False)
    two = program.run(tfdist.mirrored_strategy(devices[:2]).scope(), trainer=True)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(two["weight 0"], expected["weight 0"], rtol=0, atol=TOLERANCE)
