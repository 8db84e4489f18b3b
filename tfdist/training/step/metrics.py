"""Finds the metrics that add up over replicas, and keeps their totals.

Most of Keras' metrics keep sums (a total and a count, a confusion matrix), so the replicas'
sums add up to those of one device. A metric that does not keep sums, or is not known to, is
updated with the outputs of all replicas together instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.collectives.layout import own_variable
from tfdist.errors import ConfigError
from tfdist.keras_internals import function_of, is_of_keras
from tfdist.strategy.kinds import public_name
from tfdist.training.model.inspection import flat_metrics, overrides

# Means of a function that Keras does not evaluate example by example.
_NOT_BY_EXAMPLE = ("PearsonCorrelation", "ConcordanceCorrelation")


def add_up(model: keras.Model) -> bool:
    """Returns whether every metric of the model keeps sums over examples."""
    return all(_adds_up(metric) for metric in flat_metrics(model))


def _adds_up(metric: keras.Metric) -> bool:
    if not is_of_keras(type(metric)) or type(metric).__name__ in _NOT_BY_EXAMPLE:
        return False
    function = function_of(metric)
    return function is None or is_of_keras(function)


def check_gathering(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Rejects metrics that do not add up if the model's own step updates them.

    Raises:
        ConfigError: Names the metric and what to do.
    """
    for method in ("train_step", "test_step"):
        if overrides(model, method):
            names = [m.name for m in flat_metrics(model) if not _adds_up(m)]
            raise ConfigError(
                f"metric {names[0]!r}: {type(model).__name__}.{method} updates it on each "
                f"replica's slice under {public_name(strategy)}, and it keeps no plain sums; "
                "give it to compile(metrics=...) and leave the step to Keras, or build it on "
                "keras.metrics.Mean"
            )


class MetricTotals:
    """The sums behind a model's metrics, over all replicas and steps so far.

    They are separate from the metrics' own variables, which a strategy may have copied
    onto every replica, to be summed when read.

    Args:
        model: A compiled model whose metrics have been built.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._of = list(model.metrics_variables)
        self._variables = [own_variable(tf.zeros(v.shape, v.dtype)) for v in self._of]
        self._results: dict[Any, Any] = {}

    @property
    def variables(self) -> list[tf.Variable]:
        """The sums."""
        return self._variables

    def reset(self) -> None:
        """Resets the sums to the metrics' initial state, except variables they do not reset."""
        with keras.StatelessScope() as scope:
            self._model.reset_metrics()
        for variable, own in zip(self.variables, self._of, strict=True):
            start = scope.get_current_value(own)
            if start is not None:
                variable.assign(start)

    def add(self, grown: Sequence[tf.Tensor]) -> None:
        """Adds the increments of the metrics."""
        for variable, value in zip(self.variables, grown, strict=True):
            variable.assign_add(tf.cast(value, variable.dtype))

    def read(self) -> list[tf.Tensor]:
        """Returns the sums."""
        return [variable.read_value() for variable in self.variables]

    def assign(self, totals: Sequence[tf.Tensor]) -> None:
        """Sets the sums."""
        for variable, value in zip(self.variables, totals, strict=True):
            variable.assign(tf.cast(value, variable.dtype))

    def results(self, reported: Mapping[str, keras.Metric | None] | None = None) -> dict[str, Any]:
        """Returns the metrics' values by name, as in Keras' logs.

        Args:
            reported: Names of logs, with the metric whose result each is, if it is one; the
                metrics by their own names if absent.
        """
        key = None
        if reported is not None:
            key = tuple((name, id(metric)) for name, metric in reported.items())
        if key not in self._results:
            self._results[key] = tf.function(lambda: self._compute(reported))
        return dict(self._results[key]())

    def publish(self) -> None:
        """Writes the sums to the metrics themselves, for `metric.result()` to see."""
        for variable, total in zip(self._of, self.variables, strict=True):
            # What assigning returns is a sum over all replicas, made by a collective for each.
            variable.value.assign(total, read_value=False)

    def _compute(self, reported: Mapping[str, keras.Metric | None] | None) -> dict[str, Any]:
        mapping = [
            (v, total.read_value()) for v, total in zip(self._of, self._variables, strict=True)
        ]
        with keras.StatelessScope(mapping):
            own = self._model.get_metrics_result()
            if reported is None:
                return _values(own)
            results = {}
            for name, metric in reported.items():
                value = own.get(name) if metric is None else metric.result()
                if isinstance(value, Mapping):
                    value = value.get(name, own.get(name))
                if value is not None:
                    results[name] = value
            return _values(results)


class HostTotals(MetricTotals):
    """Sums that are added up in NumPy, and written to variables when these are asked for.

    To add a batch's values to variables costs an operation of TensorFlow each, which for a short
    step is more than all else that the chief does.
    """

    _sums: list[np.ndarray] | None = None

    @property
    def variables(self) -> list[tf.Variable]:
        """The sums."""
        self._write()
        return self._variables

    def results(self, reported: Mapping[str, keras.Metric | None] | None = None) -> dict[str, Any]:
        """The metrics' values by name; see `MetricTotals.results`."""
        self._write()
        return super().results(reported)

    def add_packed(self, packed: Sequence[Any]) -> None:
        """Adds the increments of the metrics.

        Args:
            packed: Arrays, as `pack` makes them of the increments.
        """
        if self._sums is None:
            self._sums = [np.array(variable.numpy()) for variable in self._variables]
        whole = {np.asarray(vector).dtype: np.asarray(vector) for vector in packed}
        at = dict.fromkeys(whole, 0)
        for index, total in enumerate(self._sums):
            dtype = total.dtype
            piece = whole[dtype][at[dtype] : at[dtype] + total.size]
            at[dtype] += total.size
            self._sums[index] = total + piece.reshape(total.shape)

    def _write(self) -> None:
        """Writes the sums to the variables, if there are new ones."""
        if self._sums is not None:
            for variable, value in zip(self._variables, self._sums, strict=True):
                variable.assign(value)
            self._sums = None


def pack(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns tensors as one vector for each type, so that few are sent."""
    types = dict.fromkeys(value.dtype for value in values)
    return [
        tf.concat([tf.reshape(value, [-1]) for value in values if value.dtype == dtype], axis=0)
        for dtype in types
    ]


def _values(results: dict[str, Any]) -> dict[str, Any]:
    """Converts results to tensors: a metric may return a variable, whose value is in the scope."""

    def of_leaf(leaf: Any) -> Any:
        return tf.convert_to_tensor(leaf.value) if isinstance(leaf, keras.Variable) else leaf

    return keras.tree.map_structure(of_leaf, results)
