"""Which metrics add up over replicas: the sums of two halves are those of the whole."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest

from tfdist.training.metrics import _adds_up, in_order

ARGUMENTS = {
    "IoU": {"num_classes": 2, "target_class_ids": [0]},
    "MeanIoU": {"num_classes": 2},
    "OneHotIoU": {"num_classes": 2, "target_class_ids": [0]},
    "OneHotMeanIoU": {"num_classes": 2},
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
}
ONE_ARGUMENT = ("Mean", "Sum")
LABELS = ("IoU", "MeanIoU", "SparseCategoricalAccuracy", "SparseTopKCategoricalAccuracy")
ABSTRACT = ("Metric", "MeanMetricWrapper")
FAMILIES = sorted(
    name
    for name, thing in vars(keras.metrics).items()
    if inspect.isclass(thing) and issubclass(thing, keras.Metric) and name not in ABSTRACT
)


def data(name):
    rng = np.random.default_rng(3)
    y_pred = rng.uniform(0.05, 0.95, (9, 2)).astype("float32")
    y_true = np.eye(2, dtype="float32")[rng.integers(0, 2, 9)]
    if name.startswith("Sparse") or name in LABELS:
        y_true = y_true.argmax(-1).astype("int32")
        if name in ("IoU", "MeanIoU"):
            y_pred = y_pred.argmax(-1).astype("int32")
    return (y_pred[:, 0],) if name in ONE_ARGUMENT else (y_true, y_pred)


@pytest.mark.parametrize("name", FAMILIES)
def test_sums_of_parts_are_those_of_the_whole(name):
    metric = getattr(keras.metrics, name)(**ARGUMENTS.get(name, {}))
    arrays = data(name)

    def state(piece):
        metric.reset_state()
        metric.update_state(*(array[piece] for array in arrays))
        return [np.array(variable.numpy()) for variable in metric.variables]

    whole = state(slice(None))
    assert whole, f"{name} keeps no state"
    parts = zip(state(slice(0, 4)), state(slice(4, None)), strict=True)
    sums = [one + two for one, two in parts]
    same = all(np.allclose(a, b, atol=1e-5) for a, b in zip(whole, sums, strict=True))
    assert same == _adds_up(metric) or not _adds_up(metric)


def test_functions_and_classes_of_the_user_are_not_taken_to_add_up():
    class Own(keras.metrics.Mean):
        pass

    assert not _adds_up(Own())
    assert not _adds_up(keras.metrics.MeanMetricWrapper(lambda t, p: p))
    assert _adds_up(keras.metrics.Mean())


def test_the_order_of_evaluate_is_that_of_the_metrics_whatever_that_of_the_logs():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", metrics=["mse", "mae"])
    x = np.ones((4, 2), "float32")
    model.evaluate(x, x, verbose=0)
    logs = {"alien": 5, "another": 6, "loss": 0, "mae": 2, "mse": 1}
    assert in_order(model, logs) == [0, 1, 2, 5, 6]
