"""Metrics that add up do so over replicas, and their totals are kept apart from them."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.errors import ConfigError
from tfdist.training.model.inspection import flat_metrics
from tfdist.training.step.metrics import (
    HostTotals,
    MetricTotals,
    _adds_up,
    add_up,
    check_gathering,
    pack,
)

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


def compiled(*metrics, kind=keras.Sequential):
    model = kind([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", metrics=list(metrics))
    x = np.ones((4, 2), "float32")
    model.compute_metrics(x, x, x)  # makes their variables
    model.reset_metrics()
    return model


def spread(y_true, y_pred):
    return keras.ops.max(y_pred) - keras.ops.min(y_pred)


def test_a_model_adds_up_if_all_its_metrics_do():
    assert add_up(compiled("mse", keras.metrics.AUC()))
    assert not add_up(compiled("mse", keras.metrics.PearsonCorrelation()))
    assert not add_up(compiled("mse", spread))


@pytest.mark.parametrize("method", ["train_step", "test_step"])
def test_a_step_that_updates_a_metric_that_is_no_sum_is_refused(devices, method):
    strategy = tfdist.mirrored_strategy(devices[:2])
    check_gathering(compiled(spread), strategy)
    own = type("Own", (keras.Sequential,), {method: lambda self, data: {}})
    with pytest.raises(ConfigError, match=rf"'spread'.*Own.{method}.*MirroredStrategy"):
        check_gathering(compiled("mae", spread, kind=own), strategy)


def test_totals_are_kept_apart_from_the_metrics_until_they_are_published(devices):
    with tfdist.mirrored_strategy(devices[:2]).scope():
        model = compiled("mae")
    totals = MetricTotals(model)
    own = model.metrics_variables
    assert len(own) == 4  # total and count, of the loss and of the error
    totals.add([tf.constant(v) for v in (3.0, 2.0, 8.0, 5.0)])
    totals.add([tf.constant(v) for v in (3.0, 2.0, 8.0, 5.0)])
    assert [float(v) for v in totals.read()] == [6.0, 4.0, 16.0, 10.0]
    assert {k: float(v) for k, v in totals.results().items()} == pytest.approx(
        {"loss": 1.5, "mae": 1.6}
    )
    assert not any(v.numpy().any() for v in own)
    totals.publish()
    assert [float(v.numpy()) for v in own] == [6.0, 4.0, 16.0, 10.0]
    totals.assign([tf.constant(v, tf.float64) for v in (1.0, 2.0, 3.0, 4.0)])
    assert {k: float(v) for k, v in totals.results().items()} == {"loss": 0.5, "mae": 0.75}
    assert float(own[0].numpy()) == 6.0
    totals.reset()
    assert [float(v) for v in totals.read()] == [0.0] * 4
    assert float(own[0].numpy()) == 6.0


def test_results_are_given_by_the_names_of_a_steps_logs():
    totals = MetricTotals(compiled("mae", "mse"))
    loss, mae, _ = flat_metrics(totals._model)
    totals.assign([tf.constant(float(v)) for v in (1, 2, 3, 4, 5, 5)])
    reported = {"error": mae, "mae": None, "alien": None, "own loss": loss}
    found = {k: float(v) for k, v in totals.results(reported).items()}
    assert found == {"error": 0.75, "mae": 0.75, "own loss": 0.5}
    assert set(totals.results()) == {"loss", "mae", "mse"}


def test_totals_are_reset_to_where_the_metric_starts():
    class Smallest(keras.Metric):
        def __init__(self):
            super().__init__(name="smallest")
            self.value = self.add_variable((), "zeros", name="value")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.value.assign(keras.ops.minimum(self.value, keras.ops.min(y_pred)))

        def reset_state(self):
            self.value.assign(100.0)

        def result(self):
            return self.value

    totals = MetricTotals(compiled(Smallest()))
    totals.reset()
    assert float(totals.results()["smallest"]) == 100.0
    totals.assign([*totals.read()[:-1], tf.constant(7.0)])
    assert float(totals.results()["smallest"]) == 7.0


def evaluated():
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse", metrics=["mae", keras.metrics.AUC(num_thresholds=5)])
    x = np.ones((4, 2), "float32")
    made.evaluate(x, np.ones((4, 1)), verbose=0)
    return made


def increments(of, number):
    random = np.random.default_rng(number)
    return [tf.constant(random.normal(size=v.shape), v.dtype) for v in of.metrics_variables]


def test_sums_kept_in_numpy_are_the_bits_of_variables():
    made = evaluated()
    plain, host = MetricTotals(made), HostTotals(made)
    for number in range(5):
        plain.add(increments(made, number))
        host.add_packed([vector.numpy() for vector in pack(increments(made, number))])
        if number == 2:  # They are read, and grow on.
            assert host.results() == plain.results()
    for own, expected in zip(host.variables, plain.variables, strict=True):
        np.testing.assert_array_equal(own.numpy(), expected.numpy())
    assert host.results() == plain.results()


def test_in_numpy_a_reset_and_an_assignment_forget_what_was_not_read():
    made = evaluated()
    host = HostTotals(made)
    added = [vector.numpy() for vector in pack(increments(made, 0))]
    host.add_packed(added)
    host.reset()
    assert not any(np.any(variable.numpy()) for variable in host.variables)
    host.add_packed(added)
    host.assign(increments(made, 1))
    for own, expected in zip(host.variables, increments(made, 1), strict=True):
        np.testing.assert_array_equal(own.numpy(), expected.numpy())


def test_each_type_travels_as_one_vector():
    values = [tf.ones((2, 2)), tf.constant(3), tf.ones(3), tf.constant([4])]
    first, second = pack(values)
    assert (first.shape, first.dtype) == ((7,), tf.float32)
    assert second.numpy().tolist() == [3, 4]
    assert pack([]) == []
