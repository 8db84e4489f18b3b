"""Programs of other people's that once gave other numbers on two replicas and said nothing.

Each is equal to plain Keras now, or warned of. That `trainable` counts until the next compile is in
`loops/test_select.py`.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L
from keras import ops

import tfdist
from tests.selected import some
from tfdist.runtime.log import LOGGER

pytestmark = pytest.mark.filterwarnings("ignore")  # Keras warns of a softmax over the rows.

ROWS, BATCH = 48, 16
random = np.random.RandomState(0)
X = random.normal(size=(ROWS, 6)).astype("float32")
Y = X[:, :1] * 2
WEIGHTS = np.ones(ROWS, "float32")
WEIGHTS[16:22] = WEIGHTS[32:39] = 0  # The first batch has no padding.
USERS, ITEMS = random.randint(0, 20, ROWS), random.randint(0, 30, ROWS)
EVENTS = np.stack([random.rand(ROWS), random.randint(0, 2, ROWS)], 1).astype("float32")
LENGTHS = ([9] + [2] * 15) * 3
WORDS = ["one two three four five six", "one", "two three", "four", "six five", "one one", "two"]


def sequential(*middle, loss="mse", rate=0.05):
    model = keras.Sequential([keras.Input((6,)), L.Dense(4), *middle, L.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), loss)
    return model


class Sums(L.Layer):
    def call(self, x):
        self.add_loss(1e-2 * ops.sum(ops.square(x)))
        return x


class Sparsity(keras.regularizers.Regularizer):
    """The divergence of the batch's mean activation, of a sparse autoencoder."""

    def __call__(self, a):
        p = ops.mean(a, axis=0)
        return 0.5 * ops.sum(0.1 * ops.log(0.1 / p) + 0.9 * ops.log(0.9 / (1 - p)))


class Experts(L.Layer):
    """Their load is balanced by products of means over the batch."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = L.Dense(3, "softmax"), [L.Dense(4) for _ in range(3)]

    def build(self, shape):
        for layer in (self.gate, *self.experts):
            layer.build(shape)
        self.built = True

    def call(self, x):
        p = self.gate(x)
        share = ops.mean(ops.one_hot(ops.argmax(p, -1), 3), 0)
        self.add_loss(3.0 * ops.sum(share * ops.mean(p, 0)))
        return sum(p[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class Normalizes(L.Layer):
    def call(self, x, training=False):
        if not training:
            return x
        return (x - ops.mean(x, 0, keepdims=True)) / ops.sqrt(ops.var(x, 0, keepdims=True) + 1e-3)


class Linear(keras.Model):
    def __init__(self, units=1):
        super().__init__()
        self.d = L.Dense(units, kernel_initializer="ones")

    def call(self, x):
        return self.d(x)

    def made(self, **compiled):
        self(X[:1])
        self.compile(keras.optimizers.SGD(0.01), **compiled)
        return self


class Summed(Linear):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.reduce_mean((y - self(x)) ** 2, -1))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"l": loss}


class Contrast(Linear):
    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            one, other = (tf.math.l2_normalize(self(v), 1) for v in (x, x * 1.1 + 0.1))
            scores = one @ tf.transpose(other) * 5.0
            own = tf.range(tf.shape(x)[0])
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(own, scores))
        if self.run_eagerly:
            float(loss.numpy())
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"l": loss}


class DrawsToo(Linear):
    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(1)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        noise = keras.random.normal((2,), seed=self.seed)
        return ops.sum(ops.square(y - y_pred)) / BATCH + 0.0 * ops.mean(noise)


class Worst(Linear):
    def __init__(self):
        super().__init__()
        self.worst = keras.metrics.Mean(name="worst")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            error = y - self(x)
            loss = tf.reduce_mean(error**2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.worst.update_state(tf.reduce_max(tf.abs(error)))
        return {"worst": self.worst.result(), "right": tf.reduce_sum(tf.cast(error > 0, "float32"))}


class Annealed(L.Layer):
    """By a variable that the model does not track."""

    beta = None

    def call(self, x, training=False):
        if training:
            self.beta[0].assign(self.beta[0] + 0.1)
        return x * self.beta[0]


class Counts(Linear):
    """In a variable of TensorFlow's."""

    def __init__(self):
        super().__init__()
        aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.beta = tf.Variable(0.0, trainable=False, aggregation=aggregation)

    def train_step(self, data):
        x, y = data
        self.beta.assign_add(0.1)
        with tf.GradientTape() as tape:
            loss = self.beta * tf.reduce_mean((y - self(x)) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"l": loss}


class TwoTowers(keras.Model):
    def __init__(self):
        super().__init__()
        self.users, self.items = L.Embedding(20, 8), L.Embedding(30, 8)
        self.loss_of = keras.losses.CategoricalCrossentropy(from_logits=True, reduction="sum")

    def build(self, shape):
        self.users.build(shape)
        self.items.build(shape)
        self.built = True

    def call(self, x):
        return self.users(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        scores = ops.matmul(y_pred, ops.transpose(self.items(y)))
        return self.loss_of(ops.eye(ops.shape(scores)[0]), scores)


def cox(y, p):
    time, event, p = y[:, 0], ops.cast(ops.equal(y[:, 1], 1.0), "float32"), p[:, 0]
    risk = ops.cast(time[None] >= time[:, None], "float32")
    return event * (ops.log(ops.sum(risk * ops.exp(p)[None], 1)) - p)


class Pads(keras.Model):
    def __init__(self):
        super().__init__()
        self.e, self.d = L.Embedding(20, 4), L.Dense(1)

    def call(self, x):
        x = x.to_tensor() if isinstance(x, tf.RaggedTensor) else x
        return self.d(ops.mean(self.e(x), 1))


class WeightedMean(Linear):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        values = ops.mean(ops.square(y - y_pred), -1)
        weights = ops.cast(sample_weight, values.dtype)
        return ops.sum(values * weights) / ops.sum(weights)


def annealed():
    layer = Annealed()
    layer.beta = (keras.Variable(0.0, trainable=False),)  # Keras does not look into tuples.
    object.__setattr__(layer, "beta", layer.beta)
    return sequential(layer)


def two_towers():
    model = TwoTowers()
    model.compile(keras.optimizers.SGD(0.05))
    return model


def texts():
    words = L.TextVectorization(vocabulary=["one", "two", "three", "four", "five", "six"])
    parts = [keras.Input((), dtype="string"), words, L.Embedding(20, 4)]
    model = keras.Sequential([*parts, L.GlobalAveragePooling1D(), L.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    return model


def pads():
    model = Pads()
    model(tf.zeros((1, 3), tf.int32))
    model.compile(keras.optimizers.SGD(0.5), "mse")
    return model


def dataset(x):
    return {"x": tf.data.Dataset.from_tensor_slices((x, Y)).batch(BATCH)}


ARRAYS = {"x": X, "y": Y, "batch_size": BATCH, "shuffle": False}
RAGGED = [list(range(1, 1 + length)) for length in LENGTHS]
# What makes the model, its data, and whether two replicas are equal (else warned of).
PROGRAMS = {
    "add_loss of a sum": (lambda: sequential(Sums(), rate=0.01), ARRAYS, True),
    "divergence of means": (
        lambda: sequential(L.Dense(5, "sigmoid", activity_regularizer=Sparsity())),
        *(ARRAYS, False),
    ),
    "experts": (lambda: sequential(Experts()), ARRAYS, False),
    "rows mixed in training": (lambda: sequential(Normalizes()), ARRAYS, False),
    "UnitNormalization(axis=0)": (lambda: sequential(L.UnitNormalization(0)), ARRAYS, False),
    "Softmax(axis=0)": (lambda: sequential(L.Softmax(0)), ARRAYS, False),
    "step of a sum": (lambda: Summed().made(), ARRAYS, True),
    "contrast": (lambda: Contrast(4).made(), ARRAYS, False),
    "contrast, eagerly": (lambda: Contrast(4).made(run_eagerly=True), ARRAYS, False),
    "sum next to draws": (lambda: DrawsToo().made(), ARRAYS, True),
    "mean of a maximum": (lambda: Worst().made(), ARRAYS, False),
    "variable of a closure": (annealed, ARRAYS, True),
    "variable of TensorFlow's": (lambda: Counts().made(), ARRAYS, False),
    "padded texts": (texts, lambda: dataset((WORDS + WORDS * 2)[:16] * 3), False),
    "two towers": (two_towers, ARRAYS | {"x": USERS, "y": ITEMS}, False),
    "cox": (lambda: sequential(loss=cox), ARRAYS | {"y": EVENTS}, True),
    "padded ragged rows": (pads, lambda: dataset(tf.ragged.constant(RAGGED)), False),
    "weighted mean": (
        lambda: WeightedMean().made(),
        *(ARRAYS | {"sample_weight": WEIGHTS}, False),
    ),
}
QUICK = ("add_loss of a sum", "rows mixed in training", "variable of TensorFlow's", "cox")


@pytest.mark.parametrize("name", some([(name,) for name in PROGRAMS], [(name,) for name in QUICK]))
def test_equal_or_warned_of(devices, monkeypatch, name):
    make, data, equal = PROGRAMS[name]
    warnings = []
    monkeypatch.setattr(LOGGER, "warning", lambda text, *parts: warnings.append(text % parts))

    def numbers(model, fit):
        given = data() if callable(data) else data
        history = fit(**given, epochs=2, verbose=0).history
        return {**history, **{v.path: v.numpy() for v in model.trainable_variables}}

    keras.utils.set_random_seed(1)
    model = make()
    expected = list(numbers(model, model.fit).values())
    keras.utils.set_random_seed(1)
    with tfdist.mirrored_strategy(devices[:2]).scope():
        model = make()
    found = list(numbers(model, tfdist.Trainer(model).fit).values())
    if equal:
        assert warnings == []
        for value, own in zip(expected, found, strict=True):
            np.testing.assert_allclose(own, value, rtol=2e-5, atol=2e-6)
    else:
        assert len(warnings) == 1 and "in the place of" in warnings[0]


@pytest.mark.long
def test_an_evaluation_that_ranks_rows_is_warned_of(devices, capsys):
    class Ranks(Linear):
        def test_step(self, data):
            x, y = data
            scores = -ops.sum((self(x)[:, None] - y[None]) ** 2, -1)
            right = ops.argmax(scores, 1) == ops.arange(ops.shape(x)[0])
            return {"recall": ops.mean(ops.cast(right, "float32"))}

    with tfdist.mirrored_strategy(devices[:2]).scope():
        model = Ranks(6).made(loss="mse")
    noisy = X + random.normal(size=X.shape).astype("float32")
    tfdist.Trainer(model).evaluate(X, noisy, batch_size=ROWS, verbose=0)
    assert "Ranks.test_step: the log recall is" in capsys.readouterr().err
