"""Features whose parts are not means over a slice's examples, or that several replicas share."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.training.conformance.setting import (
    BATCH,
    CLASSES,
    ROWS,
    STRATEGIES,
    TWO_REPLICAS,
    WIDTH,
    Recipe,
    Setting,
    batches,
    classifier,
    crossentropy,
    feature,
    generator,
    glorot,
    inputs,
    labels,
    sgd,
    targets,
)

layers = keras.layers
GROUP = "What is no mean over a slice"
SYNCHRONOUS = ("one_device", *TWO_REPLICAS)
# Where a batch is divided, or its steps are not in this process.
_DIVIDED = (*TWO_REPLICAS, "parameter_server")


def _fit(model: keras.Model, x: Any, y: Any, *weight: Any, **more: Any) -> Recipe:
    data = batches(x, y, *weight)
    return Recipe(model, fit={"x": data, "epochs": 2}, evaluate={"x": data}, **more)


def _together(setting: Setting) -> layers.Layer:
    return layers.BatchNormalization(momentum=0.8, synchronized=setting.strategy in TWO_REPLICAS)


class Keeper(keras.Model):
    """Keeps tensors on itself in `call`, for `compute_loss`, with a collective in between."""

    def __init__(self, together: layers.Layer) -> None:
        super().__init__()
        self.hidden = layers.Dense(8, activation="tanh", kernel_initializer=glorot(1))
        self.together = together
        self.last = layers.Dense(CLASSES, kernel_initializer=glorot(2))
        self.kept: dict[str, list[Any]] = {"activities": []}

    def call(self, x: Any, training: bool = False) -> Any:
        self.size = tf.reduce_mean(tf.square(x))
        self.kept["activities"].clear()
        x = self.hidden(x)
        self.kept["activities"].append(tf.reduce_mean(tf.abs(x)))
        x = self.together(x, training=training)
        self.kept["activities"].append(tf.reduce_mean(tf.abs(x)))
        return self.last(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True) -> Any:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.1 * self.size + 0.1 * tf.add_n(list(self.kept["activities"]))


@feature("Tensors that a model keeps on itself, synchronized BatchNormalization", GROUP)
def kept_tensors(setting: Setting) -> Recipe:
    model = Keeper(_together(setting))
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    return _fit(model, inputs(), labels())


@feature("Activity regularizer before synchronized BatchNormalization", GROUP)
def kept_losses(setting: Setting) -> Recipe:
    regularized = layers.Dense(8, activity_regularizer=keras.regularizers.L2(0.1))
    model = classifier(regularized, _together(setting))
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    return _fit(model, inputs(), labels())


@feature('Loss with reduction "sum", activity regularizer', GROUP)
def sum_loss_regularized(setting: Setting) -> Recipe:
    model = classifier(layers.Dense(8, activity_regularizer=keras.regularizers.L2(0.1)))
    model.compile(sgd(0.01), crossentropy(reduction="sum"), metrics=["accuracy"])
    return _fit(model, inputs(), labels())


@feature("Losses of several reductions, two outputs", GROUP)
def mixed_reductions(setting: Setting) -> Recipe:
    one = keras.Input((WIDTH,))
    model = keras.Model(one, [layers.Dense(2)(one), layers.Dense(1)(one)])
    losses = [keras.losses.MeanSquaredError("sum"), keras.losses.MeanAbsoluteError()]
    model.compile(sgd(0.005), losses, loss_weights=[0.5, 2.0])
    return _fit(model, inputs(), (targets(width=2), targets(seed=8)))


@feature("Loss with reduction None", GROUP)
def reduction_none(setting: Setting) -> Recipe:
    model = classifier()
    model.compile(sgd(0.01), crossentropy(reduction=None), metrics=["accuracy"])
    return _fit(model, inputs(), labels())


def _words() -> np.ndarray:
    words = (np.abs(inputs()) * 7).astype("int32") % 9
    words[:, 3:] *= np.arange(ROWS)[:, None] % 3 > 0  # many rows end early
    return words


def _tagger(kind: type[keras.Model] = keras.Model) -> keras.Model:
    words = keras.Input((WIDTH,), dtype="int32")
    embedded = layers.Embedding(10, 4, mask_zero=True)(words)
    return kind(words, layers.Dense(CLASSES)(embedded))


def _tags() -> np.ndarray:
    return generator().integers(0, CLASSES, (ROWS, WIDTH)).astype("int32")


def own_accuracy(y_true: Any, y_pred: Any) -> Any:
    return tf.cast(tf.equal(tf.argmax(y_pred, -1), tf.cast(y_true, tf.int64)), tf.float32)


@feature("Masks, a metric function of the user's", GROUP)
def masks_own_metric(setting: Setting) -> Recipe:
    model = _tagger()
    model.compile(sgd(0.2), crossentropy(), metrics=[own_accuracy, "accuracy"])
    return _fit(model, _words(), _tags())


@feature("Losses with ignore_class", GROUP)
def ignore_class(setting: Setting) -> Recipe:
    model = classifier()
    model.compile(sgd(), crossentropy(ignore_class=1), metrics=["accuracy"])
    return _fit(model, inputs(), labels())


class OwnStep(keras.Model):
    """Keras' guide to custom train steps, with the compiled loss."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
        return {"loss": self.metrics[0].result()}


@feature("train_step overridden, masks", GROUP)
def train_step_masks(setting: Setting) -> Recipe:
    model = _tagger(OwnStep)
    model.compile(sgd(0.2), crossentropy())
    return _fit(model, _words(), _tags())


def _own_step() -> keras.Model:
    network = classifier()
    return OwnStep(network.inputs, network.outputs)


@feature('train_step overridden, loss with reduction "sum"', GROUP)
def train_step_sum(setting: Setting) -> Recipe:
    model = _own_step()
    model.compile(sgd(0.01), crossentropy(reduction="sum"))
    return _fit(model, inputs(), labels())


@feature("train_step overridden, ignore_class", GROUP)
def train_step_ignore_class(setting: Setting) -> Recipe:
    model = _own_step()
    model.compile(sgd(), crossentropy(ignore_class=1))
    return _fit(model, inputs(), labels())


@feature("train_step overridden, loss with reduction None", GROUP)
def train_step_none(setting: Setting) -> Recipe:
    model = _own_step()
    model.compile(sgd(0.01), crossentropy(reduction=None))
    return _fit(model, inputs(), labels())


class Sized(layers.Layer):
    """Adds a loss of a value an example, as an OCR model its CTC loss: Keras sums them."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * tf.reduce_sum(tf.square(x), axis=-1))
        return x


@feature("add_loss of a value an example", GROUP)
def add_loss_vector(setting: Setting) -> Recipe:
    model = classifier(Sized())
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    return _fit(model, inputs(), labels())


def _probabilities() -> keras.Model:
    return keras.Sequential([keras.Input((WIDTH,)), layers.Dense(CLASSES, activation="softmax")])


@feature("Losses over the batch: Dice and Tversky", GROUP)
def dice(setting: Setting) -> Recipe:
    one = keras.Input((WIDTH,))
    outputs = [layers.Dense(CLASSES, activation="sigmoid")(one) for _ in range(3)]
    model = keras.Model(one, outputs)
    losses = [
        keras.losses.Dice(),
        keras.losses.Tversky(alpha=0.3),
        keras.losses.Dice(axis=(0,), reduction="sum"),
    ]
    model.compile(sgd(0.2), losses)
    y = np.eye(CLASSES, dtype="float32")[labels()]
    return _fit(model, inputs(), (y, y, y))


@feature("Losses over the batch: Circle", GROUP)
def circle(setting: Setting) -> Recipe:
    model = keras.Sequential(
        [keras.Input((WIDTH,)), layers.Dense(4), layers.UnitNormalization(axis=-1)]
    )
    model.compile(sgd(0.01), keras.losses.Circle(gamma=2))
    return _fit(model, inputs(), labels())


def contrast_by_example(y_true: Any, y_pred: Any) -> Any:
    """The softmax of each example's likeness to all examples of the batch, of its class."""
    alike = tf.matmul(y_pred, y_pred, transpose_b=True)
    same = tf.cast(tf.equal(y_true[:, None], y_true[None, :]), tf.float32)
    same = tf.reshape(same, tf.shape(alike))
    return tf.nn.softmax_cross_entropy_with_logits(same, alike)


def contrast(y_true: Any, y_pred: Any) -> Any:
    """The same as one number."""
    return tf.reduce_mean(contrast_by_example(y_true, y_pred))


@feature("Losses over the batch: a function of the user's that gives one number", GROUP)
def contrastive(setting: Setting) -> Recipe:
    model = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(4)])
    model.compile(sgd(0.005), contrast)
    return _fit(model, inputs(), labels())


@feature("Losses over the batch: a function of the user's with a value an example", GROUP)
def contrastive_by_example(setting: Setting) -> Recipe:
    model = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(4)])
    model.compile(sgd(0.005), contrast_by_example)
    return _fit(model, inputs(), labels())


@feature(
    "A stateful recurrent layer",
    GROUP,
    refused=dict.fromkeys(_DIVIDED, "stateful=True keeps a state for each row"),
)
def stateful(setting: Setting) -> Recipe:
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(BATCH, 3, 2)),
            layers.GRU(
                3,
                stateful=True,
                kernel_initializer=glorot(1),
                recurrent_initializer=keras.initializers.Orthogonal(seed=3),
            ),
            layers.Dense(1, kernel_initializer=glorot(2)),
        ]
    )
    model.compile(sgd(0.01), "mse")
    x = inputs(4 * BATCH).reshape(-1, 3, 2)
    data = batches(x, targets(4 * BATCH))
    return Recipe(model, fit={"x": data, "epochs": 2}, evaluate={"x": data}, predict={"x": data})


@feature(
    "accumulate_steps, a loss that compares examples",
    GROUP,
    refused=dict.fromkeys(STRATEGIES, "compares examples with each other")
    | {"parameter_server": "each worker updates"},
)
def accumulated_contrast(setting: Setting) -> Recipe:
    model = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(4)])
    model.compile(sgd(0.005), contrast_by_example)
    return Recipe(model, fit={"x": batches(inputs(), labels())}, trainer={"accumulate_steps": 2})


@feature(
    'accumulate_steps, loss with reduction "sum"',
    GROUP,
    refused=dict.fromkeys(STRATEGIES, "Trainer(accumulate_steps)"),
)
def accumulate_sum(setting: Setting) -> Recipe:
    model = classifier()
    model.compile(sgd(0.01), crossentropy(reduction="sum"))
    return Recipe(model, fit={"x": batches(inputs(), labels())}, trainer={"accumulate_steps": 2})


@feature(
    "accumulate_steps, masks",
    GROUP,
    refused=dict.fromkeys(STRATEGIES, "Trainer(accumulate_steps)"),
)
def accumulate_masks(setting: Setting) -> Recipe:
    model = _tagger()
    model.compile(sgd(0.01), crossentropy())
    return Recipe(model, fit={"x": batches(_words(), _tags())}, trainer={"accumulate_steps": 2})


@feature(
    "accumulate_steps, ignore_class",
    GROUP,
    refused=dict.fromkeys(STRATEGIES, "Trainer(accumulate_steps)"),
)
def accumulate_ignore_class(setting: Setting) -> Recipe:
    model = classifier()
    model.compile(sgd(0.01), crossentropy(ignore_class=1))
    return Recipe(model, fit={"x": batches(inputs(), labels())}, trainer={"accumulate_steps": 2})


class Autoencoder(keras.Model):
    """Returns logs under other names than its trackers', as the VAE of Keras' examples."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.total = keras.metrics.Mean(name="total_loss")
        self.error = keras.metrics.MeanAbsoluteError(name="error")

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.total, self.error]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x)
            loss = tf.reduce_mean(tf.square(y - y_pred))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.total.update_state(loss)
        self.error.update_state(y, y_pred)
        return {"loss": self.total.result(), "last_loss": loss, "ten": 10.0}

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        return {"last_loss": tf.reduce_mean(tf.square(y - self(x)))}


@feature("train_step overridden, logs under other names than the metrics'", GROUP, one_device=1e-7)
def log_names(setting: Setting) -> Recipe:
    network = keras.Sequential(
        [keras.Input((WIDTH,)), layers.Dense(2, kernel_initializer=glorot(1))]
    )
    model = Autoencoder(network.inputs, network.outputs)
    model.compile(sgd(0.01))
    data = batches(inputs(), targets(width=2))
    return Recipe(
        model, fit={"x": data, "epochs": 2, "validation_data": data}, evaluate={"x": data}
    )


class ComputedLog(Autoencoder):
    """Returns what it computes from a metric."""

    def train_step(self, data: Any) -> dict[str, Any]:
        logs = super().train_step(data)
        return {"loss": logs["loss"], "root": tf.sqrt(self.total.result())}


@feature(
    "train_step overridden, a log computed from a metric's result",
    GROUP,
    one_device=1e-7,
    refused=dict.fromkeys(_DIVIDED, "ComputedLog.train_step: log 'root' is computed from"),
)
def computed_log(setting: Setting) -> Recipe:
    network = keras.Sequential(
        [keras.Input((WIDTH,)), layers.Dense(2, kernel_initializer=glorot(1))]
    )
    model = ComputedLog(network.inputs, network.outputs)
    model.compile(sgd(0.01))
    return Recipe(model, fit={"x": batches(inputs(), targets(width=2)), "epochs": 2})


class Target(keras.Model):
    """Copies its weights to a target network, and keeps a moving average, after each update."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.target = classifier(), classifier()
        self.average = classifier()
        for weight in self.average.weights:
            weight.assign(tf.zeros_like(weight))
        self.target.trainable = False

    def call(self, x: Any) -> Any:
        return self.network(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self.network(x) + 0.1 * self.target(x)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        weights = self.network.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        for target, average, weight in zip(
            self.target.weights, self.average.weights, weights, strict=True
        ):
            target.assign(weight)
            average.assign(0.9 * average + 0.1 * weight)
        # The last batch's, as it is no metric's.
        return {"entropy": loss, "rate": self.optimizer.learning_rate}

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        return {"entropy": self.compute_loss(y=y, y_pred=self.average(x))}


@feature(
    "train_step with a target network and averaged weights",
    GROUP,
    one_device=1e-6,
    only=("history", "weight", "evaluate"),  # Keras' optimizer has slots for what it updates alone
    refused={"parameter_server": "Target.train_step: reads weights or iterations after"},
)
def target_network(setting: Setting) -> Recipe:
    model = Target()
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    model.compile(keras.optimizers.Adam(schedule), crossentropy())
    return _fit(model, inputs(), labels())


class Beside(keras.Model):
    """Trains on unlabelled rows beside fewer labelled ones."""

    def train_step(self, data: Any) -> dict[str, Any]:
        unlabelled, (x, y) = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
            loss += 0.1 * tf.reduce_mean(tf.square(self(unlabelled)))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"error": loss}


@feature(
    "Elements whose parts differ in rows",
    GROUP,
    refused=dict.fromkeys(TWO_REPLICAS, "data: an element is not one batch: its parts have"),
)
def uneven_parts(setting: Setting) -> Recipe:
    network = keras.Sequential(
        [keras.Input((WIDTH,)), layers.Dense(1, kernel_initializer=glorot(1))]
    )
    model = Beside(network.inputs, network.outputs)
    model.compile(sgd(0.01))
    parts = (batches(inputs(32)), batches(inputs(8, seed=3), targets(8), batch=2))
    data = tf.data.Dataset.zip((parts[0].map(lambda *x: x[0]), parts[1]))
    return Recipe(model, fit={"x": data, "epochs": 2})


@feature("A metric that reads the learning rate, under a schedule", GROUP)
def rate_metric(setting: Setting) -> Recipe:
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.8))

    def rate(y_true: Any, y_pred: Any) -> Any:
        return optimizer.learning_rate

    model = classifier()
    model.compile(optimizer, crossentropy(), metrics=[rate])
    return _fit(model, inputs(), labels())


class Counting(layers.Layer):
    """Counts its calls, and the rows of them, or not."""

    def __init__(self, *, rows: bool) -> None:
        super().__init__()
        self._rows = rows

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)
        self.half = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign_add(tf.shape(x)[0] if self._rows else 1)
            self.half.assign_add(0.5)
        return x


@feature("A layer that counts its calls", GROUP)
def counted_calls(setting: Setting) -> Recipe:
    model = classifier(Counting(rows=False))
    model.compile(sgd(), crossentropy())
    return _fit(model, inputs(), labels())


@feature(
    "A layer that counts rows",
    GROUP,
    refused=dict.fromkeys(TWO_REPLICAS, "is assigned an integer that depends on the batch"),
)
def counted_rows(setting: Setting) -> Recipe:
    model = classifier(Counting(rows=True))
    model.compile(sgd(), crossentropy())
    return _fit(model, inputs(), labels())
