"""Columns, ratings, graphs and time series."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.training.conformance.setting import Recipe, Setting, batches, generator
from tests.training.programs.program import program, table


@program(
    "structured_data/imbalanced_classification",
    "class_weight, counts of the confusion matrix, precision and recall",
    reference="slices",
)
def imbalanced_classification(setting: Setting) -> Recipe:
    x, labels = table(64, 8)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(32, activation="relu"),
            setting.dropout(0.3, seed=3),
            layers.Dense(32, activation="relu"),
            setting.dropout(0.3, seed=4),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    metrics = [
        keras.metrics.FalseNegatives(name="fn"),
        keras.metrics.FalsePositives(name="fp"),
        keras.metrics.TrueNegatives(name="tn"),
        keras.metrics.TruePositives(name="tp"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.Recall(name="recall"),
    ]
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=metrics)
    rare = float(labels[:48].mean())
    y = labels[:, None].astype("uint8")
    return Recipe(
        model,
        fit={
            "x": x[:48],
            "y": y[:48],
            "batch_size": 16,
            "epochs": 2,
            "validation_data": (x[48:], y[48:]),
            "class_weight": {0: 1.0 / (1 - rare), 1: 1.0 / rare},
            "shuffle": False,
        },
        evaluate={"x": x, "y": y},
        predict={"x": x},
    )


@program(
    "structured_data/wide_deep_cross_networks",
    "a dict of number and text columns, StringLookup and embeddings, crossed layers",
    reference="slices",
    dtype="float64",
)
def wide_deep_cross_networks(setting: Setting) -> Recipe:
    numbers, labels = table(48, 3)
    soils = np.asarray(["clay", "sand", "rock"])[generator(3).integers(0, 3, 48)]
    data: dict[str, Any] = {f"number_{i}": numbers[:, i : i + 1] for i in range(3)}
    inputs: dict[str, Any] = {name: keras.Input((1,), name=name) for name in data}
    inputs["soil"] = keras.Input((1,), name="soil", dtype="string")
    index = layers.StringLookup(vocabulary=["clay", "rock", "sand"], num_oov_indices=1)
    soil = layers.Embedding(4, 2)(index(inputs["soil"]))
    x = start = layers.concatenate(
        [inputs[name] for name in data] + [layers.Reshape((2,))(soil)], axis=1
    )
    start = x = setting.normalization()(x)
    for _ in range(2):
        x = start * layers.Dense(5)(x) + x
    deep = start
    for units in (16, 8):
        deep = setting.normalization()(layers.Dense(units)(deep))
        deep = setting.dropout(0.1, seed=units)(layers.ReLU()(deep))
    outputs = layers.Dense(2, activation="softmax")(layers.concatenate([x, deep]))
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate=0.001),
        loss=keras.losses.SparseCategoricalCrossentropy(),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    dataset = batches(data | {"soil": soils[:, None]}, labels)
    return Recipe(model, fit={"x": dataset, "epochs": 2}, evaluate={"x": dataset})


def _ratings(rows: int) -> tuple[np.ndarray, np.ndarray]:
    draws = generator(0)
    pairs = np.stack([draws.integers(0, 12, rows), draws.integers(0, 9, rows)], axis=1)
    return pairs.astype("int32"), ((pairs.sum(axis=1) % 7) / 6).astype("float32")[:, None]


class Recommender(keras.Model):
    """Rates by an inner product that is taken over the whole batch, not row by row."""

    def __init__(self, users: int, movies: int, width: int) -> None:
        super().__init__()
        options: Any = {
            "embeddings_initializer": "he_normal",
            "embeddings_regularizer": keras.regularizers.l2(1e-6),
        }
        self.user = layers.Embedding(users, width, **options)
        self.user_bias = layers.Embedding(users, 1)
        self.movie = layers.Embedding(movies, width, **options)
        self.movie_bias = layers.Embedding(movies, 1)

    def call(self, inputs: Any) -> Any:
        user, movie = self.user(inputs[:, 0]), self.movie(inputs[:, 1])
        alike = ops.tensordot(user, movie, 2)
        return ops.nn.sigmoid(alike + self.user_bias(inputs[:, 0]) + self.movie_bias(inputs[:, 1]))


@program(
    "structured_data/collaborative_filtering_for_movielens",
    "embeddings with regularizers; one number that call makes of all rows of its batch",
    differs=dict.fromkeys(
        ("mirrored", "multi_worker_mirrored"),
        "its call makes one number of all rows it is given, and a replica is given its slice; a "
        "warning says so",
    ),
)
def collaborative_filtering_for_movielens(setting: Setting) -> Recipe:
    model = Recommender(12, 9, 8)
    model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=keras.optimizers.Adam(0.001))
    x, y = _ratings(64)
    return Recipe(
        model,
        fit={
            "x": x[:48],
            "y": y[:48],
            "batch_size": 16,
            "epochs": 2,
            "validation_data": (x[48:], y[48:]),
            "shuffle": False,
        },
    )


class HashedEmbedding(layers.Layer):
    """Two small tables instead of one: by quotient and by remainder."""

    def __init__(self, words: int, width: int, buckets: int) -> None:
        super().__init__()
        self.buckets = buckets
        self.quotients = layers.Embedding(words // buckets + 1, width)
        self.remainders = layers.Embedding(buckets, width)

    def call(self, numbers: Any) -> Any:
        quotient = self.quotients(tf.math.floordiv(numbers, self.buckets))
        return quotient * self.remainders(tf.math.floormod(numbers, self.buckets))


@program(
    "keras_recipes/memory_efficient_embeddings",
    "two inputs in a dict, an own layer of two embeddings, a Dot of them, Adam",
)
def memory_efficient_embeddings(setting: Setting) -> Recipe:
    users = keras.Input((), name="user", dtype="int32")
    movies = keras.Input((), name="movie", dtype="int32")
    user, movie = HashedEmbedding(12, 8, 4)(users), layers.Embedding(9, 8)(movies)
    rating = layers.Dot(axes=1)([user, movie])
    model = keras.Model({"user": users, "movie": movies}, layers.Activation("sigmoid")(rating))
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss=keras.losses.MeanSquaredError(),
        metrics=[keras.metrics.MeanAbsoluteError(name="mae")],
    )
    pairs, y = _ratings(48)
    data = batches({"user": pairs[:, 0], "movie": pairs[:, 1]}, y)
    return Recipe(model, fit={"x": data, "epochs": 2, "validation_data": data.take(2)})


class GraphAttention(layers.Layer):
    """Each node takes a mean of its neighbours, weighted by attention over its edges."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = units

    def build(self, input_shape: Any) -> None:
        width = input_shape[0][-1]
        self.kernel = self.add_weight(shape=(width, self.units), initializer="glorot_uniform")
        self.attention = self.add_weight(
            shape=(2 * self.units, 1), initializer="glorot_uniform", name="attention"
        )

    def call(self, inputs: Any) -> Any:
        states, edges = inputs
        states = tf.matmul(states, self.kernel)
        ends = tf.reshape(tf.gather(states, edges), (tf.shape(edges)[0], -1))
        scores = tf.exp(tf.clip_by_value(tf.nn.leaky_relu(tf.matmul(ends, self.attention)), -2, 2))
        nodes = tf.shape(states)[0]
        total = tf.math.unsorted_segment_sum(scores, edges[:, 0], nodes)
        share = scores / tf.gather(total, edges[:, 0])
        return tf.math.unsorted_segment_sum(
            tf.gather(states, edges[:, 1]) * share, edges[:, 0], nodes
        )


class GraphAttentionNetwork(keras.Model):
    """The model holds the graph; a batch holds numbers of nodes, and a step picks their rows."""

    def __init__(self, states: Any, edges: Any, units: int, classes: int) -> None:
        super().__init__()
        self.states = states
        self.edges = edges
        self.preprocess = layers.Dense(units, activation="relu")
        self.attentions = [GraphAttention(units) for _ in range(2)]
        self.outputs_of = layers.Dense(classes)

    def call(self, inputs: Any) -> Any:
        states, edges = inputs
        x = self.preprocess(states)
        for attention in self.attentions:
            x = attention([x, edges]) + x
        return self.outputs_of(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        indices, labels = data
        with tf.GradientTape() as tape:
            outputs = self([self.states, self.edges])
            loss = self.compute_loss(y=labels, y_pred=tf.gather(outputs, indices))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.compute_metrics(indices, labels, tf.gather(outputs, indices))

    def predict_step(self, data: Any) -> Any:
        outputs = self([self.states, self.edges])
        return tf.nn.softmax(tf.gather(outputs, data))

    def test_step(self, data: Any) -> dict[str, Any]:
        indices, labels = data
        outputs = tf.gather(self([self.states, self.edges]), indices)
        self.compute_loss(y=labels, y_pred=outputs)
        return self.compute_metrics(indices, labels, outputs)


@program(
    "graph/gat_node_classification",
    "the model holds a graph, the batches are numbers of its nodes; built on nothing of a batch",
)
def gat_node_classification(setting: Setting) -> Recipe:
    draws = generator(0)
    x, labels = table(40, 6)
    edges = np.concatenate([np.stack([np.arange(40)] * 2, 1), draws.integers(0, 40, (80, 2))])
    model = GraphAttentionNetwork(tf.constant(x), tf.constant(edges, tf.int32), 8, 2)
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.SGD(0.3, momentum=0.9),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
    )
    nodes = np.arange(40, dtype="int32")
    return Recipe(
        model,
        fit={
            "x": nodes,
            "y": labels,
            "validation_split": 0.2,
            "batch_size": 16,
            "epochs": 2,
            "shuffle": False,
            "callbacks": [keras.callbacks.EarlyStopping(monitor="val_acc", patience=5)],
        },
        predict={"x": nodes},
    )


def _series(rows: int, length: int = 24) -> tuple[np.ndarray, np.ndarray]:
    draws = generator(0)
    labels = draws.integers(0, 2, rows).astype("int32")
    angles = np.arange(length) * (0.4 + 0.4 * labels[:, None])
    noisy = np.sin(angles) + 0.2 * draws.normal(size=(rows, length))
    return noisy[..., None].astype("float32"), labels


@program(
    "timeseries/timeseries_anomaly_detection",
    "one-dimensional convolutions and their transposes, dropout, EarlyStopping",
    reference="slices",
)
def timeseries_anomaly_detection(setting: Setting) -> Recipe:
    model = keras.Sequential(
        [
            keras.Input((24, 1)),
            layers.Conv1D(8, 7, padding="same", strides=2, activation="relu"),
            setting.dropout(0.2, seed=3),
            layers.Conv1D(4, 7, padding="same", strides=2, activation="relu"),
            layers.Conv1DTranspose(4, 7, padding="same", strides=2, activation="relu"),
            setting.dropout(0.2, seed=4),
            layers.Conv1DTranspose(8, 7, padding="same", strides=2, activation="relu"),
            layers.Conv1DTranspose(1, 7, padding="same"),
        ]
    )
    model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001), loss="mse")
    x, _ = _series(40)
    stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=5, mode="min")
    return Recipe(
        model,
        fit={
            "x": x,
            "y": x,
            "epochs": 3,
            "batch_size": 16,
            "validation_split": 0.2,
            "callbacks": [stop],
            "shuffle": False,
        },
        predict={"x": x},
    )


@program(
    "timeseries/timeseries_classification_from_scratch",
    "BatchNormalization; ModelCheckpoint of the best, ReduceLROnPlateau, EarlyStopping",
    reference="slices",
    dtype="float64",
)
def timeseries_classification_from_scratch(setting: Setting) -> Recipe:
    inputs = x = keras.Input((24, 1))
    for _ in range(3):
        x = layers.Conv1D(8, 3, padding="same")(x)
        x = layers.ReLU()(setting.normalization()(x))
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(x))
    best = str(setting.folder / "best_model.keras")
    callbacks = [
        keras.callbacks.ModelCheckpoint(best, save_best_only=True, monitor="val_loss"),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, min_lr=1e-4),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=50, verbose=0),
    ]
    metrics = ["sparse_categorical_accuracy"]
    model.compile("adam", "sparse_categorical_crossentropy", metrics=metrics)
    series, labels = _series(40)
    return Recipe(
        model,
        fit={
            "x": series,
            "y": labels,
            "batch_size": 8,
            "epochs": 4,
            "callbacks": callbacks,
            "validation_split": 0.2,
            "shuffle": False,
        },
        evaluate={"x": series, "y": labels},
        predict={"x": series},
    )
