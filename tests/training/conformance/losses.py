"""Features: losses and metrics."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.training.conformance.setting import (
    BATCH,
    CLASSES,
    ROWS,
    WIDTH,
    Recipe,
    Setting,
    batches,
    classifier,
    classify,
    crossentropy,
    feature,
    generator,
    inputs,
    labels,
    sgd,
    targets,
)

metrics = keras.metrics
GROUP = "Losses and metrics"


@feature("class_weight", GROUP)
def class_weight(setting: Setting) -> Recipe:
    model = classifier()
    model.compile(sgd(), crossentropy(), metrics=["accuracy"], weighted_metrics=["accuracy"])
    return classify(model, class_weight={0: 0.5, 1: 2.0, 2: 1.3})


@feature("sample_weight, weighted_metrics", GROUP)
def sample_weight(setting: Setting) -> Recipe:
    model = classifier()
    model.compile(sgd(), crossentropy(), metrics=["accuracy"], weighted_metrics=["accuracy"])
    weight = generator(4).uniform(0, 2, ROWS).astype("float32")
    weight[::5] = 0
    data = batches(inputs(), labels(), weight)
    recipe = classify(model)
    recipe.fit = {"x": data, "epochs": 2, "validation_data": data}
    recipe.evaluate = {"x": inputs(), "y": labels(), "sample_weight": weight, "batch_size": 5}
    return recipe


def _binary() -> tuple[keras.Model, np.ndarray, np.ndarray]:
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1, activation="sigmoid")])
    return model, inputs(), (labels(classes=2))[:, None].astype("float32")


@feature("Metrics: binary (AUC, precision, recall, IoU, confusion counts)", GROUP)
def metrics_binary(setting: Setting) -> Recipe:
    model, x, y = _binary()
    model.compile(
        sgd(),
        "binary_crossentropy",
        metrics=[
            "accuracy",
            metrics.AUC(name="auc"),
            metrics.AUC(curve="PR", num_thresholds=50, name="pr"),
            metrics.Precision(name="precision"),
            metrics.Recall(name="recall"),
            metrics.PrecisionAtRecall(0.5, name="at_recall"),
            metrics.SensitivityAtSpecificity(0.5, name="at_specificity"),
            metrics.TruePositives(name="tp"),
            metrics.FalseNegatives(name="fn"),
            metrics.BinaryIoU(name="iou"),
            metrics.FBetaScore(beta=2.0, threshold=0.5, name="fbeta"),
            metrics.Hinge(name="hinge"),
        ],
    )
    return _fit(model, x, y)


@feature("Metrics: classes (top-k, F1, MeanIoU, AUC of many labels, recall at top-k)", GROUP)
def metrics_classes(setting: Setting) -> Recipe:
    model = keras.Sequential(
        [keras.Input((WIDTH,)), keras.layers.Dense(CLASSES, activation="softmax")]
    )
    model.compile(
        sgd(),
        "categorical_crossentropy",
        metrics=[
            "accuracy",
            "categorical_crossentropy",
            metrics.TopKCategoricalAccuracy(2, name="top"),
            metrics.F1Score(average="macro", name="f1"),
            metrics.OneHotMeanIoU(CLASSES, name="iou"),
            metrics.AUC(multi_label=True, num_labels=CLASSES, name="auc"),
            metrics.Precision(top_k=1, class_id=1, name="precision"),
            metrics.KLDivergence(name="kl"),
        ],
    )
    return _fit(model, inputs(), np.eye(CLASSES, dtype="float32")[labels()])


@feature("Metrics: regression (RMSE, R2, cosine similarity, correlations)", GROUP, one_device=1e-7)
def metrics_regression(setting: Setting) -> Recipe:
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(2)])
    model.compile(
        sgd(0.01),
        "mse",
        metrics=[
            "mae",
            metrics.RootMeanSquaredError(name="rmse"),
            metrics.R2Score(name="r2"),
            metrics.CosineSimilarity(name="cosine"),
            metrics.MeanAbsolutePercentageError(name="mape"),
            metrics.LogCoshError(name="logcosh"),
            metrics.PearsonCorrelation(name="pearson"),
            metrics.ConcordanceCorrelation(name="concordance"),
        ],
    )
    return _fit(model, inputs(), targets(width=2))


class Largest(keras.Metric):
    """The largest prediction seen: no sum."""

    def __init__(self, name: str = "largest") -> None:
        super().__init__(name=name)
        self.value = self.add_variable((), initializer="zeros", name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(tf.maximum(self.value, tf.reduce_max(y_pred)))

    def result(self) -> Any:
        return tf.convert_to_tensor(self.value)  # not the variable: logs would change later


def spread(y_true: Any, y_pred: Any) -> Any:
    """Not a mean over examples."""
    return tf.reduce_max(y_pred) - tf.reduce_min(y_pred) + 0.0 * tf.reduce_sum(y_true)


def error_by_example(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_mean(tf.abs(y_true - y_pred) ** 1.5, axis=-1)


@feature("Metrics: the user's own, one of them no sum, and functions", GROUP)
def metrics_own(setting: Setting) -> Recipe:
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(2)])
    model.compile(sgd(0.01), "mse", metrics=[Largest(), spread, error_by_example, "mae"])
    return _fit(model, inputs(), targets(width=2))


@feature('Loss with reduction "sum"', GROUP)
def sum_loss(setting: Setting) -> Recipe:
    model = classifier()
    model.compile(sgd(0.01), crossentropy(reduction="sum"), metrics=["accuracy"])
    return classify(model)


@feature('Losses with reduction "sum", two outputs, loss weights', GROUP)
def sum_losses(setting: Setting) -> Recipe:
    one = keras.Input((WIDTH,))
    model = keras.Model(one, [keras.layers.Dense(2)(one), keras.layers.Dense(1)(one)])
    losses = [keras.losses.MeanSquaredError("sum"), keras.losses.MeanAbsoluteError("sum")]
    model.compile(sgd(0.005), losses, loss_weights=[0.5, 2.0])
    data = batches(inputs(), (targets(width=2), targets(seed=8)))
    return Recipe(model, fit={"x": data, "epochs": 2}, evaluate={"x": data})


@feature("The user's own loss function", GROUP)
def own_loss(setting: Setting) -> Recipe:
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(2)])
    model.compile(sgd(0.01), error_by_example)
    return _fit(model, inputs(), targets(width=2))


@feature('Loss with reduction "mean_with_sample_weight"', GROUP)
def mean_with_sample_weight(setting: Setting) -> Recipe:
    model = classifier()
    model.compile(sgd(), crossentropy(reduction="mean_with_sample_weight"))
    weight = generator(4).uniform(0, 2, ROWS).astype("float32")
    data = batches(inputs(), labels(), weight)
    return Recipe(model, fit={"x": data, "epochs": 2}, evaluate={"x": data})


def _fit(model: keras.Model, x: np.ndarray, y: np.ndarray) -> Recipe:
    return Recipe(
        model,
        fit={"x": batches(x, y), "epochs": 2, "validation_data": batches(x[:17], y[:17], batch=5)},
        evaluate={"x": x, "y": y, "batch_size": BATCH},
    )
