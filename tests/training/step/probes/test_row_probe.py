from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tfdist.training.step.probes.row_probe import mixes_rows

random = np.random.default_rng(0)
X = random.normal(size=(8, 3)).astype("float32")
Y = random.normal(size=(8, 2)).astype("float32")


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


class Forward(keras.Model):
    """Two layers, with something of the user's between them."""

    def __init__(self, between):
        super().__init__()
        self.first = keras.layers.Dense(4)
        self.last = keras.layers.Dense(2)
        self.between = between

    def call(self, x):
        return self.last(self.between(self.first(x)))


class Step(keras.Model):
    """A step whose loss is written by hand."""

    def __init__(self, loss, clips=None):
        super().__init__()
        self.layer = keras.layers.Dense(2)
        self.own_loss = loss
        self.clips = clips
        self.count = self.add_weight((), "zeros", trainable=False, name="count")
        self.raw = tf.Variable(0.0)
        self.called = 0

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        self.called += 1
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.own_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        if self.clips:
            gradients, _ = tf.clip_by_global_norm(gradients, self.clips)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.count.assign_add(1)
        self.raw.assign_add(1)
        return {"loss": loss}


class OwnLoss(Forward):
    """A user's loss as well as the compiled one."""

    def __init__(self, loss, between=lambda x: x):
        super().__init__(between)
        self.own_loss = loss

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight) + self.own_loss(y, y_pred)


def squares(x, y, y_pred):
    return tf.reduce_mean(tf.square(y - y_pred))


def contrast(x, y, y_pred):
    same = tf.matmul(y_pred, y_pred, transpose_b=True)
    own = tf.range(tf.shape(same)[0])
    return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(own, same, True))


def counted(x, y, y_pred):
    valid = tf.cast(y[:, 0] > -0.5, tf.float32)
    return tf.reduce_sum(valid * tf.square(y - y_pred)[:, 0]) / (tf.reduce_sum(valid) + 1.0)


def mixed_up(x, y, y_pred):
    share = keras.random.beta((), 0.2, 0.2, seed=1)
    return tf.reduce_mean(tf.square(share * y + (1 - share) * y[::-1] - y_pred))


def made(model, loss="mse"):
    model.compile("sgd", loss)
    model(X[:1])
    model.optimizer.build(model.trainable_variables)
    return model


def functional(between, loss="mse"):
    inputs = keras.Input([3])
    outputs = keras.layers.Dense(2)(between(keras.layers.Dense(4)(inputs)))
    return made(keras.Model(inputs, outputs), loss)


def centred():
    return keras.layers.Lambda(lambda x: x - ops.mean(x, 0))


@pytest.mark.parametrize(
    "model",
    [
        lambda: made(Forward(lambda x: x - ops.mean(x, axis=0))),
        lambda: made(Forward(lambda x: x + ops.tensordot(x, x, 2))),
        lambda: functional(lambda x: x - ops.mean(x, axis=0, keepdims=True)),
        lambda: functional(centred()),
        lambda: made(keras.Sequential([keras.layers.Dense(4), centred(), keras.layers.Dense(2)])),
    ],
    ids=["mean", "tensordot", "operation", "lambda", "sequential"],
)
def test_a_forward_pass_that_mixes_rows(model):
    assert mixes_rows(model(), (X, Y))[0] == "call"


@pytest.mark.parametrize(
    "model",
    [
        lambda: made(Forward(keras.layers.BatchNormalization())),
        lambda: made(Forward(keras.layers.Dropout(0.5))),
        lambda: made(Forward(lambda x: x + keras.random.normal(ops.shape(x)))),
        lambda: made(Forward(lambda x: x + tf.random.normal(tf.shape(x)))),
        lambda: made(Forward(lambda x: ops.softmax(x, axis=-1))),
        lambda: functional(lambda x: ops.mean(x, axis=1, keepdims=True)),
        lambda: functional(keras.layers.BatchNormalization()),
        lambda: made(Forward(lambda x: x), keras.losses.Circle()),
    ],
    ids=["normalized", "dropout", "drawn", "drawn_anew", "softmax", "operation", "keras", "circle"],
)
def test_a_forward_pass_that_does_not(model):
    assert mixes_rows(model(), (X, Y)) is None


@pytest.mark.parametrize(
    "step",
    [(contrast, None), (counted, None), (mixed_up, None), (squares, 0.1)],
    ids=["contrast", "counted", "mixup", "clipped"],
)
def test_a_step_that_mixes_rows(step):
    assert mixes_rows(made(Step(*step)), (X, Y))[0] == "train_step"


@pytest.mark.parametrize(
    "loss",
    [
        squares,
        lambda x, y, y_pred: keras.losses.MeanSquaredError("sum")(y, y_pred),
        lambda x, y, y_pred: keras.losses.Circle()(y, y_pred),
        lambda x, y, y_pred: tf.square(y - y_pred),
        lambda x, y, y_pred: tf.reduce_mean(keras.random.normal(tf.shape(y)) * y_pred),
    ],
    ids=["squares", "sum", "circle", "by_example", "drawn"],
)
def test_a_step_that_does_not(loss):
    model = made(Step(loss))
    assert mixes_rows(model, (X, Y)) is None


def test_nothing_is_assigned_or_kept():
    model = made(Step(contrast))
    before = model.get_weights()
    assert mixes_rows(model, (X, Y))
    assert model.called == 0
    assert model.raw.numpy() == 0
    np.testing.assert_equal(model.get_weights(), before)


def test_a_loss_that_mixes_rows():
    model = made(OwnLoss(lambda y, y_pred: 100 * tf.square(tf.reduce_mean(y_pred))))
    assert mixes_rows(model, (X, Y))[0] == "compute_loss"


def test_a_loss_that_is_a_sum_over_a_number_of_its_own():
    model = made(OwnLoss(lambda y, y_pred: tf.nn.compute_average_loss(y_pred**2, None, 8)))
    assert mixes_rows(model, (X, Y))[0] == "compute_loss"


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, y_pred: tf.reduce_mean(tf.square(y_pred)),
        lambda y, y_pred: tf.square(y_pred),
        lambda y, y_pred: 3 * keras.losses.MeanSquaredError("sum")(y, y_pred),
        lambda y, y_pred: keras.losses.MeanSquaredError(None)(y, y_pred),
        lambda y, y_pred: tf.reduce_mean(keras.random.normal(tf.shape(y)) * y_pred),
    ],
    ids=["mean", "by_example", "sum", "unreduced", "drawn"],
)
def test_a_loss_that_does_not(loss):
    assert mixes_rows(made(OwnLoss(loss)), (X, Y)) is None


def test_predictions_ask_for_the_forward_pass_only():
    model = made(Step(contrast))
    assert mixes_rows(model, X, training=False) is None
    assert mixes_rows(made(Forward(lambda x: x - ops.mean(x, axis=0))), X, training=False)


def test_masks_are_no_mixture():
    words = random.integers(0, 3, (8, 5))

    class Masked(keras.Model):
        def __init__(self):
            super().__init__()
            self.words = keras.layers.Embedding(3, 4, mask_zero=True)
            self.layer = keras.layers.Dense(1)

        def call(self, x):
            return self.layer(self.words(x))

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return super().compute_loss(x, y, y_pred, sample_weight)

    model = Masked()
    model.compile("sgd", "mse")
    model(words[:1])
    assert mixes_rows(model, (words, words[..., None].astype("float32"))) is None


def test_few_rows_and_failing_code_say_nothing():
    model = made(Step(contrast))
    assert mixes_rows(model, (X[:2], Y[:2])) is None

    def fails(x, y, y_pred):
        raise ValueError

    assert mixes_rows(made(Step(fails)), (X, Y)) is None


def test_what_it_replaces_is_put_back():
    call = keras.layers.BatchNormalization.call
    loss = keras.Loss.__call__
    mixes_rows(made(Step(contrast)), (X, Y))
    assert keras.layers.BatchNormalization.call is call
    assert keras.Loss.__call__ is loss
