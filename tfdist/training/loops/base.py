"""Defines the interface of a loop, which runs the steps for a `Trainer`."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.training.input.epoch import Epoch
from tfdist.training.input.feed import Feed
from tfdist.training.step.metrics import MetricTotals
from tfdist.training.update.apply import Update


@dataclass(frozen=True)
class EpochProgress:
    """The progress of an epoch, for a checkpoint.

    Attributes:
        totals: The metric totals.
        logs: What the loop's `logs` are, as far as they are numbers.
        update: The variables of the update.
    """

    totals: list[np.ndarray]
    logs: dict[str, float]
    update: list[np.ndarray] = field(default_factory=list)


def only_numbers(logs: dict[str, Any]) -> dict[str, float]:
    """Returns the logs that a checkpoint holds: without arrays, and what is no number."""
    return {name: value for name, value in logs.items() if isinstance(value, float)}


def plain(logs: dict[str, Any]) -> dict[str, Any]:
    """Returns logs as Python numbers; a metric of several values stays an array."""

    def of_value(value: Any) -> Any:
        array = np.asarray(value)
        return float(array) if array.ndim == 0 else array

    return {name: of_value(value) for name, value in logs.items()}


class Loop(abc.ABC):
    """Runs the steps of one model under one strategy, with one kind of data.

    What a subclass need not override is right where a call returns when its steps are done.

    Attributes:
        totals: The sums behind the metrics.
        update: Updates the weights, after each batch or after several.
        reads_all: Whether each of several workers reads all data and takes its part of it.
        has_trained: Whether it has begun to train: its graph is made, with what was trainable.
    """

    totals: MetricTotals
    update: Update
    reads_all: bool = False
    has_trained: bool = False

    def build(self, feed: Feed) -> None:  # noqa: B027
        """Makes the model's variables before a checkpoint is read, where that is not done yet."""

    def take_sample(self, data: Any) -> None:  # noqa: B027
        """Receives the first rows of the data, before the first step."""

    @abc.abstractmethod
    def reset_metrics(self) -> None:
        """Resets the metrics."""

    @abc.abstractmethod
    def train(self, epoch: Epoch, steps: int, *, logs: bool = True) -> dict[str, Any]:
        """Trains on the next `steps` elements; returns the logs for the callbacks.

        Args:
            epoch: The elements.
            steps: How many.
            logs: Whether anybody reads the logs; an empty dict is returned if not.
        """

    @abc.abstractmethod
    def test(self, epoch: Epoch, steps: int) -> dict[str, Any]:
        """Evaluates on the next `steps` elements; returns the logs so far."""

    @abc.abstractmethod
    def predict(self, epoch: Epoch, steps: int = 1) -> Any:
        """Begins to predict the next element; `fetch` gives the outputs."""

    def fetch(self, prediction: Any) -> Any:
        """Returns the outputs of the whole global batch, in its order."""
        return prediction

    def join(self, predictions: list[Any]) -> Any:
        """Returns the outputs of all elements together, as arrays."""
        return keras.tree.map_structure(lambda *parts: np.concatenate(parts, axis=0), *predictions)

    def publish(self) -> None:
        """Writes the metrics' sums to the metrics themselves, for `metric.result()` to see."""
        self.totals.publish()

    def input_seconds(self) -> float:
        """Returns how long steps have waited for elements since this was asked last; 0 if unknown.

        Elements that are fetched before a step, one by one, do not count.
        """
        return 0.0

    def finish_epoch(self) -> None:
        """Completes all steps of the epoch, in the weights and the metrics."""
        self.update.finish()

    def settle(self) -> None:  # noqa: B027
        """Waits until the variables hold the results of all steps."""

    @abc.abstractmethod
    def logs(self) -> dict[str, Any]:
        """Returns the metrics' values so far, and the last logs of an overridden step."""

    @abc.abstractmethod
    def progress(self) -> EpochProgress:
        """Returns the progress of the epoch; call `settle` first."""

    @abc.abstractmethod
    def resume(self, totals: list[tf.Tensor] | None, logs: dict[str, float]) -> None:
        """Starts from an earlier `progress`; from no metrics where `totals` is None.

        Another kind of loop may have made it: its logs stand for this one's until a step is made.
        """
