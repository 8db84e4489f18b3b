"""Slices are tried against the whole batch: what differs is found, and what does not is not."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tfdist.training.rehearsal.compare import difference
from tfdist.training.rehearsal.known import own_losses
from tfdist.training.rehearsal.rehearsal import rehearse
from tfdist.training.step.patches.row_sums import NO_SUMS, RowSums
from tfdist.training.step.replica import PREDICT, TEST, TRAIN

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
        return {"loss": loss}


class Raw(Step):
    """Counts its steps in a variable of TensorFlow's."""

    def __init__(self, *args):
        super().__init__(*args)
        self.raw = tf.Variable(0.0, trainable=False)

    def train_step(self, data):
        self.raw.assign_add(1.0)
        return super().train_step(data)


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


def tried(model, data, doing=TRAIN):
    """What comes of a rehearsal."""
    data = tf.nest.map_structure(tf.convert_to_tensor, data)
    return rehearse(
        model,
        data,
        doing,
        updates_within=False,
        in_one_process=True,
    )


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
    assert tried(model(), (X, Y)).differs


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
    ],
    ids=["normalized", "dropout", "drawn", "drawn_anew", "softmax", "operation", "keras"],
)
def test_a_forward_pass_that_does_not(model):
    finding = tried(model(), (X, Y))
    assert not finding.differs and not finding.error


@pytest.mark.parametrize(
    "step",
    [(contrast, None), (counted, None), (squares, 0.1)],
    ids=["contrast", "counted", "clipped"],
)
def test_a_step_that_mixes_rows(step):
    assert tried(made(Step(*step)), (X, Y)).differs


@pytest.mark.parametrize(
    "loss",
    [
        squares,
        lambda x, y, y_pred: keras.losses.MeanSquaredError("sum")(y, y_pred),
        lambda x, y, y_pred: tf.square(y - y_pred),
        lambda x, y, y_pred: tf.reduce_mean(keras.random.normal(tf.shape(y)) * y_pred),
    ],
    ids=["squares", "sum", "by_example", "drawn"],
)
def test_a_step_that_does_not(loss):
    finding = tried(made(Step(loss)), (X, Y))
    assert not finding.differs and not finding.error


def test_a_loss_that_mixes_rows():
    model = made(OwnLoss(lambda y, y_pred: 100 * tf.square(tf.reduce_mean(y_pred))))
    assert tried(model, (X, Y)).differs


class OnlyOwnLoss(OwnLoss):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.own_loss(y, y_pred)


def test_a_loss_that_is_a_sum_is_told_to_the_step():
    """Over a number of its own, as a loop of several devices divides it."""
    model = made(OnlyOwnLoss(lambda y, y_pred: tf.nn.compute_average_loss(y_pred**2, None, 8)))
    finding = tried(model, (X, Y))
    assert finding.sums == RowSums(loss=True) and not finding.differs


@pytest.mark.parametrize("rows", [7, 8])
def test_a_step_and_logs_that_are_sums(rows):
    model = made(Step(lambda x, y, y_pred: tf.reduce_sum(tf.square(y - y_pred))))
    finding = tried(model, (X[:rows], Y[:rows]))
    assert finding.sums == RowSums(loss=True, logs=("loss",)) and not finding.differs


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, y_pred: tf.reduce_mean(tf.square(y_pred)),
        lambda y, y_pred: 3 * keras.losses.MeanSquaredError("sum")(y, y_pred),
        lambda y, y_pred: tf.reduce_mean(keras.random.normal(tf.shape(y)) * y_pred),
    ],
    ids=["mean", "sum", "drawn"],
)
def test_a_loss_that_does_not(loss):
    finding = tried(made(OwnLoss(loss)), (X, Y))
    assert not finding.differs and not finding.error and finding.sums == NO_SUMS


def test_what_is_added_as_a_sum():
    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(ops.mean(ops.square(x)))
            self.add_loss(0.1 * ops.sum(ops.square(x)))
            return x

    finding = tried(functional(Adds()), (X, Y))
    assert finding.sums == RowSums(added=(1,)) and not finding.differs


def test_a_users_loss_that_compares_rows_is_to_be_computed_on_all_of_them():
    def ranks(y_true, y_pred):
        later = ops.cast(y_true[:, :1] >= ops.transpose(y_true[:, :1]), "float32")
        return ops.cast(y_true[:, 0] > 0.9, "float32") * ops.sum(later * y_pred[:, :1], 1)

    model = made(keras.Sequential([keras.layers.Dense(2)]), ranks)
    y = np.round(np.abs(Y))
    model.compute_loss(X, y, model(X))
    losses = own_losses(model)
    finding = tried(model, (X, y))
    assert finding.compares == tuple(losses) and not finding.differs


def test_predictions_and_evaluation():
    model = made(Step(contrast))
    assert not tried(model, X, PREDICT).differs
    assert tried(made(Forward(lambda x: x - ops.mean(x, axis=0))), X, PREDICT).differs
    assert not tried(model, (X, Y), TEST).differs

    class Ranks(Step):
        def test_step(self, data):
            scores = tf.matmul(self(data[0]), data[1], transpose_b=True)
            own = tf.range(tf.shape(scores)[0], dtype=tf.int64)
            return {"first": tf.reduce_mean(tf.cast(tf.argmax(scores, 1) == own, tf.float32))}

    assert "first" in tried(made(Ranks(squares)), (X, Y), TEST).differs


def test_masks_and_ragged_rows():
    words = random.integers(1, 3, (8, 5))
    words[::2, 3:] = 0

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
    finding = tried(model, (words, words[..., None].astype("float32")))
    assert not finding.differs and not finding.error


def test_a_weighted_mean_by_hand_though_the_weights_are_all_one():
    class Weighted(Forward):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            values = tf.reduce_mean(tf.square(y - y_pred), -1) * sample_weight
            return tf.reduce_sum(values) / tf.reduce_sum(sample_weight)

    model = made(Weighted(lambda x: x))
    assert tried(model, (X, Y, np.ones(8, "float32"))).differs


def test_a_loss_that_is_that_of_even_slices_only():
    """Of pairs of rows, where one that is left over counts for nothing."""

    def of_pairs(x, y, y_pred):
        values = tf.reduce_mean(tf.square(y - y_pred), -1)
        return tf.reduce_mean(values[: tf.shape(values)[0] // 2 * 2])

    assert tried(made(Step(of_pairs)), (X, Y)).differs


def test_weights_that_hide_a_mixture():
    model = made(OwnLoss(lambda y, y_pred: 100 * tf.square(tf.reduce_mean(y_pred))))
    model.set_weights([np.zeros_like(value) for value in model.get_weights()])
    assert tried(model, (X, Y)).differs


def test_what_rounding_does_is_allowed():
    whole, sliced = {"a": np.array([1.0, 2.0])}, {"a": np.array([1.0, 2.001])}
    assert difference(whole, sliced, whole) == "a is 2.001 in the place of 2"
    assert difference(whole, sliced, {"a": np.array([1.0001, 2.0])}) == ""


def test_few_rows():
    model = made(Step(contrast))
    assert tried(model, (X[:2], Y[:2])).differs
    finding = tried(made(Step(squares)), (X[:1], Y[:1]))
    assert not finding.differs and not finding.error


def test_code_that_fails_is_told():
    def fails(x, y, y_pred):
        raise ValueError("no such\nthing")

    assert tried(made(Step(fails)), (X, Y)).error == "ValueError: no such"


def test_a_variable_of_tensorflows_that_each_replica_assigns():
    assert "tf.Variable" in tried(made(Raw(squares)), (X, Y)).differs


@pytest.mark.parametrize("eager", [False, True])
def test_nothing_is_assigned_or_kept(eager):
    model = made(Raw(contrast))
    model.run_eagerly = eager
    before = model.get_weights()
    assert tried(model, (X, Y)).differs
    assert (model.called, model.raw.numpy()) == (0, 0)
    np.testing.assert_equal(model.get_weights(), before)


def test_what_it_replaces_is_put_back():
    from tensorflow.python.ops import gen_random_ops

    kept = keras.Loss.__call__, gen_random_ops.random_uniform, tf.Variable(0.0).assign.__func__
    tried(made(Step(contrast)), (X, Y))
    now = keras.Loss.__call__, gen_random_ops.random_uniform, tf.Variable(0.0).assign.__func__
    assert kept == now
