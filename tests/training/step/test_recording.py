"""Metrics of two replicas come to what one device has seen, whether they add up or not."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.training.step.replicas import (
    X,
    Y,
    built,
    on_each,
    plain,
    slicer_of,
    tensors,
    transport_of,
)
from tfdist.training.model.inspection import ModelVariables
from tfdist.training.step.metrics import MetricTotals
from tfdist.training.step.recording import AddedUp, Continued, Gathered, first_rows
from tfdist.training.step.replica import KerasStep


class Largest(keras.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = keras.ops.abs(y_true - y_pred)
        error = error if sample_weight is None else error * sample_weight
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(error)))

    def result(self):
        return tf.convert_to_tensor(self.value)


def spread() -> keras.Metric:
    """A mean over batches of what is not a mean over examples."""

    def of_batch(y_true, y_pred):
        return keras.ops.max(y_pred) - keras.ops.min(y_pred)

    return keras.metrics.MeanMetricWrapper(of_batch, name="spread")


def make(*metrics, **arguments):
    def compiled() -> keras.Model:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[metric() for metric in metrics], **arguments)
        return model

    return compiled


def record(strategy, model, recording_of, batches, **options) -> MetricTotals:
    """The totals after test steps on some batches."""
    transport = transport_of(strategy)
    step = KerasStep(model, ModelVariables.of(model), transport, **options)
    totals = MetricTotals(model)
    recording = recording_of(totals, step, transport)
    for batch in batches:
        data = tensors(batch)
        slicer = slicer_of(strategy, data)

        def replica(data=data, slicer=slicer) -> list:
            piece = slicer((data, len(data[0])))
            output = step.test(piece, totals=recording.start())
            return recording.combine(transport.sum_small(output.metrics), output, piece)

        with step.intercepting():
            one, *others = on_each(strategy, replica)
        for other in others:
            np.testing.assert_equal(one, other)
        recording.record(one)
    return totals


def of_keras(model: keras.Model, batches) -> dict[str, float]:
    model.reset_metrics()
    for batch in batches:
        model.test_step(tensors(batch))
    return values(model.get_metrics_result())


def values(logs) -> dict[str, float]:
    return {name: float(value) for name, value in logs.items()}


# Of the second batch, one replica has no row.
BATCHES = [(X, Y), (X[:1], 5 + Y[:1]), (X[2:6], Y[2:6])]


def gathered(totals, step, transport):
    return Gathered(totals, step, transport)


@pytest.mark.parametrize("build", ["mirrored_strategy", "central_storage_strategy"])
def test_metrics_that_do_not_add_up_see_the_outputs_of_all_replicas(devices, build):
    strategy = getattr(tfdist, build)(devices[:2])
    metrics = (Largest, spread, keras.metrics.MeanAbsoluteError)
    model = built(strategy, make(*metrics))
    totals = record(strategy, model, gathered, BATCHES[:2], gathers_metrics=True)
    alone = plain(make(*metrics))
    expected = of_keras(alone, BATCHES[:2])
    assert values(totals.results()) == pytest.approx(expected, rel=1e-5)


def test_gathered_metrics_see_sample_weights(devices):
    strategy = tfdist.mirrored_strategy(devices[:2])
    arguments = {"weighted_metrics": [Largest()]}
    weights = np.arange(7, dtype="float32")[:, None]
    batch = (X, Y, weights)
    model = built(strategy, make(**arguments), batch)
    totals = record(strategy, model, gathered, [batch], gathers_metrics=True)
    error = weights * np.abs(plain(make(), batch).predict(X, verbose=0) - Y)
    assert float(totals.results()["largest"]) == pytest.approx(error.max(), rel=1e-5)


def test_gathered_metrics_see_masks(devices):
    def masked() -> keras.Model:
        layers = [keras.Input((2,), dtype="int32"), keras.layers.Embedding(4, 1, mask_zero=True)]
        model = keras.Sequential(layers)
        model.compile("sgd", "mse", weighted_metrics=["mae"])
        return model

    strategy = tfdist.mirrored_strategy(devices[:2])
    x = np.array([[1, 0], [0, 0], [0, 0], [1, 2], [3, 0], [0, 1], [2, 0]])
    batch = (x, np.tile(Y[:, None], (1, 2, 1)))
    model = built(strategy, masked, batch)
    totals = record(strategy, model, gathered, [batch], gathers_metrics=True)
    expected = of_keras(plain(masked, batch), [batch])
    assert values(totals.results()) == pytest.approx(expected, rel=1e-5)


def test_sums_are_added_and_one_replicas_metrics_go_on(devices):
    metrics = (keras.metrics.MeanAbsoluteError,)
    expected = of_keras(plain(make(*metrics)), BATCHES)
    mirrored = tfdist.mirrored_strategy(devices[:2])
    one = tfdist.one_device_strategy(devices[0])
    for strategy, kind in ((mirrored, AddedUp), (one, Continued)):
        model = built(strategy, make(*metrics))
        totals = record(strategy, model, lambda totals, *_, kind=kind: kind(totals), BATCHES)
        assert values(totals.results()) == pytest.approx(expected, rel=1e-5)


def test_one_replica_can_have_a_metric_that_is_no_sum(devices):
    strategy = tfdist.one_device_strategy(devices[0])
    model = built(strategy, make(Largest))
    totals = record(strategy, model, lambda totals, *_: Continued(totals), BATCHES)
    expected = of_keras(plain(make(Largest)), BATCHES)
    assert values(totals.results()) == pytest.approx(expected, rel=1e-5)


def test_outputs_of_a_row_that_stood_in_are_left_out():
    outputs = first_rows({"a": tf.ones((1, 2)), "b": (None, tf.ones(1))}, tf.constant(0))
    assert outputs["a"].shape == (0, 2)
    assert outputs["b"][0] is None
    assert outputs["b"][1].shape == (0,)
