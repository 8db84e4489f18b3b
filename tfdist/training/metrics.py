"""Which metrics add up over replicas, and what they amount to.

Most of Keras' metrics keep sums (a total and a count, a confusion matrix), so the replicas'
sums add up to what one device would have. A metric that does not, or that nobody can tell,
is updated with the outputs of all replicas together instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.training.recorder import flat_metrics, overrides

# Means of a function that Keras does not evaluate example by example.
_NOT_BY_EXAMPLE = ("PearsonCorrelation", "ConcordanceCorrelation")


def add_up(model: keras.Model) -> bool:
    """Says whether every metric of the model keeps sums over examples."""
    return all(_adds_up(metric) for metric in flat_metrics(model))


def _adds_up(metric: keras.Metric) -> bool:
    if not _is_of_keras(type(metric)) or type(metric).__name__ in _NOT_BY_EXAMPLE:
        return False
    function = getattr(metric, "_fn", None)
    return function is None or _is_of_keras(function)


def _is_of_keras(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).split(".")[0] == "keras"


def check_gathering(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Refuses metrics that do not add up where the model's own step updates them.

    Raises:
        ConfigError: Names the metric and what to do.
    """
    for method in ("train_step", "test_step"):
        if overrides(model, method):
            names = [m.name for m in flat_metrics(model) if not _adds_up(m)]
            raise ConfigError(
                f"metric {names[0]!r}: {type(model).__name__}.{method} updates it on each "
                f"replica's slice under {type(strategy).__name__}, and it keeps no plain sums; "
                "give it to compile(metrics=...) and leave the step to Keras, or build it on "
                "keras.metrics.Mean"
            )


def in_order(model: keras.Model, logs: Mapping[str, Any]) -> list[Any]:
    """The values as Keras' `evaluate` lists them: the metrics' in their order, others by name."""
    names = dict.fromkeys(metric.name for metric in flat_metrics(model))
    return [logs[name] for name in (*names, *sorted(logs.keys() - names)) if name in logs]


class MetricTotals:
    """The sums behind a model's metrics, over all replicas and steps so far.

    They are kept apart from the metrics' own variables, which a strategy may have
    copied onto every replica, to be added up when read.

    Args:
        model: A compiled model whose metrics have been built.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._of = list(model.metrics_variables)
        self.variables = [tf.Variable(tf.zeros(v.shape, v.dtype)) for v in self._of]
        self._results = tf.function(self._compute)

    def reset(self) -> None:
        """Sets the metrics to where nothing has been seen."""
        with keras.StatelessScope() as scope:
            self._model.reset_metrics()
        for variable, own in zip(self.variables, self._of, strict=True):
            start = scope.get_current_value(own)
            variable.assign(tf.zeros_like(variable) if start is None else start)

    def add(self, grown: Sequence[tf.Tensor]) -> None:
        """Adds what the metrics grew by."""
        for variable, value in zip(self.variables, grown, strict=True):
            variable.assign_add(tf.cast(value, variable.dtype))

    def assign(self, totals: Sequence[tf.Tensor]) -> None:
        """Sets the sums."""
        for variable, value in zip(self.variables, totals, strict=True):
            variable.assign(tf.cast(value, variable.dtype))

    def results(self) -> dict[str, tf.Tensor]:
        """The metrics' values by name, as Keras' logs have them."""
        return dict(self._results())

    def publish(self) -> None:
        """Writes the sums to the metrics themselves, for `metric.result()` to see."""
        for variable, total in zip(self._of, self.variables, strict=True):
            variable.assign(total)

    def _compute(self) -> dict[str, tf.Tensor]:
        mapping = [
            (v, total.read_value()) for v, total in zip(self._of, self.variables, strict=True)
        ]
        with keras.StatelessScope(mapping):
            return self._model.get_metrics_result()
