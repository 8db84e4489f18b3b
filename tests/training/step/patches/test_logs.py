"""Among a step's logs, results of metrics are distinguished from numbers of the last batch."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from tests.training.step.replicas import X, Y, dense
from tfdist.errors import ConfigError
from tfdist.training.step.patches.logs import ReturnedLogs


def model_of() -> keras.Model:
    model = dense()
    model.compile("sgd", "mse", metrics=["mae"])
    model.error = keras.metrics.Mean(name="error")
    model.test_on_batch(X, Y)
    return model


def sort(model, step, *touched, alone=False):
    """What becomes of the logs of a step that updates some metrics."""
    returned = ReturnedLogs(model, alone=alone)
    with returned:
        returned.start()
        ids = {id(v) for metric in touched for v in metric.variables}
        return returned.sort(step(), ids, "Own.train_step")


def test_a_result_is_its_metrics_under_any_name_and_other_numbers_are_free():
    model = model_of()
    mae = model.metrics[1].metrics[0]

    def step() -> dict:
        return {
            "renamed": mae.result(),
            "mae": mae.result(),
            "number": 3,
            "scalar": tf.constant(4.0),
            "vector": tf.ones(3),
            "text": "five",
        }

    reported, extra = sort(model, step, mae)
    assert list(reported) == ["renamed", "mae", "number", "scalar", "vector", "text"]
    assert reported["renamed"] is mae
    assert {name for name, metric in reported.items() if metric is None} >= {"number", "scalar"}
    assert {name: float(value) for name, value in extra.items()} == {"number": 3.0, "scalar": 4.0}
    assert extra["number"].dtype == tf.float32


def test_a_loss_whose_tracker_the_step_left_alone_is_what_it_returned():
    model = model_of()
    loss = model.metrics[0]
    values = {"loss": tf.constant(7.0), "error": tf.constant(8.0)}
    _, extra = sort(model, lambda: values)
    assert {name: float(value) for name, value in extra.items()} == {"loss": 7.0}
    _, extra = sort(model, lambda: values, loss)
    assert extra == {}


def test_results_of_metrics_that_the_step_left_alone_are_numbers_at_best():
    model = model_of()

    def step() -> dict:
        return {"loss": model.metrics[0].result(), "error": model.error.result()}

    reported, extra = sort(model, step)
    assert reported == {"loss": None, "error": None}
    assert list(extra) == ["loss"]
    reported, extra = sort(model, step, model.error)
    assert reported == {"loss": None, "error": model.error}


def test_dicts_inside_are_flattened_as_in_keras_logs():
    reported, extra = sort(model_of(), lambda: {"a": {"b": 1.0, "c": {"d": 2.0}}})
    assert list(reported) == list(extra) == ["b", "d"]


@pytest.mark.parametrize("logs", [None, {}, 3.0])
def test_without_logs_all_metrics_are_reported(logs):
    assert sort(model_of(), lambda: logs) == (None, {})


@pytest.mark.parametrize("alone", [True, False])
def test_numbers_computed_from_a_result_are_refused_where_a_replica_has_seen_its_slices(alone):
    model = model_of()

    def graph():
        def step() -> dict:
            return {"root": tf.sqrt(1.0 + model.error.result()), "free": tf.constant(1.0)}

        return sort(model, step, model.error, alone=alone)[1]

    traced = tf.function(graph, autograph=False)
    if alone:
        assert set(traced()) == {"root", "free"}
    else:
        with pytest.raises(ConfigError, match=r"Own.train_step: log 'root' .* metric 'error'"):
            traced()


def test_metrics_are_as_they_were_afterwards():
    model = model_of()
    sort(model, dict)
    assert "result" not in vars(model.error)
