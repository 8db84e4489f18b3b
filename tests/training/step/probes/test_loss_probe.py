"""Losses that compare examples are distinguished from others by trying them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.training.step.probes import loss_probe
from tfdist.training.step.probes.loss_probe import compares_examples


def by_example(y_true, y_pred):
    return tf.reduce_mean(tf.abs(y_true - y_pred) ** 1.5, axis=-1)


def centred(y_true, y_pred):
    """Each example is compared with the mean of the batch."""
    return tf.reduce_mean((y_true - y_pred - tf.reduce_mean(y_pred, axis=0)) ** 2, axis=-1)


def in_batch(y_true, y_pred):
    alike = tf.matmul(y_pred, y_pred, transpose_b=True)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(alike)[0]), alike)


def one_number(y_true, y_pred):
    return tf.reduce_mean((y_true - y_pred) ** 2)


def raises(y_true, y_pred):
    raise ValueError("a user's")


def not_a_number(y_true, y_pred):
    return tf.math.log(-1.0 - tf.abs(y_pred[:, 0]))


class Own(keras.Loss):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, y_true, y_pred):
        return self.function(y_true, y_pred)


def wrapped(function):
    return keras.src.losses.losses.LossFunctionWrapper(function)


@pytest.mark.parametrize("make", [wrapped, Own])
@pytest.mark.parametrize(
    ("function", "answer"),
    [
        (by_example, False),
        (centred, True),
        (in_batch, True),
        (one_number, False),  # No value an example: known by that.
        (raises, False),
        (not_a_number, False),
    ],
)
def test_the_answer(devices, make, function, answer):
    y = tf.ones((5, 4))
    assert compares_examples(make(function), y, y) is answer


def test_labels_may_be_integers_and_outputs_of_any_structure(devices):
    def of_two(y_true, y_pred):
        return tf.cast(y_true["a"], tf.float32) * (y_pred[0][:, 0] - tf.reduce_mean(y_pred[1]))

    y_true = {"a": tf.ones((5,), tf.int32)}
    assert compares_examples(Own(of_two), y_true, [tf.ones((5, 2)), tf.ones((5, 2))])


def test_a_loss_is_tried_once_and_in_a_graph_too(devices):
    calls = []

    def counted(y_true, y_pred):
        calls.append(tf.executing_eagerly())
        return centred(y_true, y_pred)

    loss = Own(counted)
    answers = []

    @tf.function
    def step(y):
        answers.append(compares_examples(loss, y, y))
        answers.append(compares_examples(loss, y, y))
        return y

    step(tf.ones((5, 4)))
    assert answers == [True, True]
    assert calls == [True] * (1 + loss_probe._ROWS)


def test_those_of_keras_are_known(devices, monkeypatch):
    monkeypatch.setattr(loss_probe, "_try", lambda *_: True)
    y = tf.constant(np.ones((5, 4), "float32"))
    assert not compares_examples(keras.losses.MeanSquaredError(), y, y)
    assert not compares_examples(wrapped(keras.losses.mean_absolute_error), y, y)
    assert compares_examples(Own(by_example), y, y)
    for over_batch in (keras.losses.Circle(), keras.losses.Dice(), keras.losses.Tversky(axis=[0])):
        assert compares_examples(over_batch, y, y)
    assert not compares_examples(keras.losses.Dice(axis=-1), y, y)
