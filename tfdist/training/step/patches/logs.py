"""Combines the logs that a model's own step returns, over replicas and batches.

A log that is a metric's result, under any name, is that metric's result over the epoch. Any other
number is that of the last batch, as in Keras, averaged over the replicas.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.keras_internals import is_eager
from tfdist.training.model.inspection import flat_metrics

# The names of the logs that a step returned, each with the metric whose result it is, or None.
Reported = dict[str, keras.Metric | None]


class ReturnedLogs(contextlib.AbstractContextManager["ReturnedLogs"]):
    """Distinguishes logs that are results of metrics from others, while entered.

    Args:
        model: The model whose metrics they are.
        alone: Whether one replica's metrics have seen the whole epoch.
    """

    def __init__(self, model: keras.Model, *, alone: bool) -> None:
        self._model = model
        self._alone = alone
        self._metrics = list(flat_metrics(model))
        self._of_thread = threading.local()

    def __enter__(self) -> ReturnedLogs:
        for metric in self._metrics:
            metric.result = functools.partial(self._result, metric, metric.result)
        return self

    def __exit__(self, *_: object) -> None:
        for metric in self._metrics:
            del metric.result

    def start(self) -> None:
        """Begins a replica's step."""
        self._of_thread.seen = []

    def sort(
        self, logs: Any, touched: set[int], where: str
    ) -> tuple[Reported | None, dict[str, tf.Tensor]]:
        """Returns the logs to report, and the values of those that are not a metric's.

        Args:
            logs: The result of the step.
            touched: Ids of the metrics' variables that the step assigned.
            where: The name of the step, for errors.

        Raises:
            ConfigError: A log is computed from a metric that has seen one replica's slice only.
        """
        if not isinstance(logs, Mapping) or not logs:
            return None, {}
        accounted = {m.name for m in self._metrics if all(id(v) in touched for v in m.variables)}
        names = {metric.name for metric in self._metrics}
        results = {id(value): metric for metric, value in self._of_thread.seen}
        reported: Reported = {}
        extra = {}
        for name, value in _flat(logs):
            metric = results.get(id(value))
            if metric is not None and not (name == metric.name and name not in accounted):
                reported[name] = metric
                continue
            reported[name] = None
            # A loss tracker that the step did not update has no result: the log itself counts.
            free = name not in accounted and (name == "loss" or name not in names)
            if not free:
                continue
            if isinstance(value, (int, float)):
                value = tf.constant(float(value))
            if tf.is_tensor(value) and value.shape.rank == 0:
                if metric is None and not self._alone:
                    self._check(name, value, where)
                extra[name] = tf.cast(value, tf.float32)
        return reported, extra

    def results_only(self, logs: Any, where: str) -> Reported | None:
        """Returns the logs to report, all of which are metrics' results; as for `sort`.

        Raises:
            ConfigError: A log is not a metric's result.
        """
        touched = {id(variable) for metric in self._metrics for variable in metric.variables}
        reported, _ = self.sort(logs, touched, where)
        for name, metric in (reported or {}).items():
            if metric is None:
                raise ConfigError(
                    f"{where}: log {name!r} is not the result of a metric, and there are metrics "
                    "that keep no sums, which all replicas update together; keep the value in "
                    "its own metric"
                )
        return reported

    def _result(self, metric: keras.Metric, result: Any) -> Any:
        value = result()
        if getattr(self._of_thread, "seen", None) is not None:
            self._of_thread.seen += [(metric, v) for v in keras.tree.flatten(value)]
        return value

    def _check(self, name: str, value: tf.Tensor, where: str) -> None:
        """Rejects a log computed from a metric's result, as that is of one replica's slices."""
        results = {v.op: m for m, v in self._of_thread.seen if _in_graph(v)}
        if not _in_graph(value) or not results:
            return
        seen, stack = set(), [value.op]
        while stack:
            operation = stack.pop()
            if operation in results:
                raise ConfigError(
                    f"{where}: log {name!r} is computed from the result of metric "
                    f"{results[operation].name!r}, which each replica knows for its slices only; "
                    "return the result itself, or keep the value in its own metric"
                )
            if operation not in seen:
                seen.add(operation)
                stack += [tensor.op for tensor in operation.inputs]


def _flat(logs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields names and values, also of nested results, as Keras' `fit` reports them."""
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def _in_graph(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and not is_eager(value)
