"""Compares the workers at set points of a `fit`, and raises an error where they differ."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import keras

from tfdist.collectives.process_group import ProcessGroup
from tfdist.errors import ConfigError, OutOfStepError
from tfdist.training.agreement.compare import require_same
from tfdist.training.agreement.description import (
    describe_batch,
    describe_call,
    describe_rates,
    describe_variables,
)
from tfdist.training.input.feed import Feed, ShardedFeed
from tfdist.training.input.shuffles import is_random, require_an_order
from tfdist.training.options import TrainerOptions

_Method = TypeVar("_Method", bound=Callable[..., Any])

# Arguments of `fit` that hold data, and what they are called in messages.
_DATA = {
    "x": "data",
    "y": "data.y",
    "sample_weight": "data.sample_weight",
    "validation_data": "validation",
}
# May differ between workers: most callbacks are the chief's, and only the chief prints.
_OWN = ("self", "callbacks", "verbose")


class WorkerConsistency:
    """Checks for a trainer that all workers do the same; with one worker there is nothing to check.

    All workers must call its methods at the same points.

    Args:
        model: The model.
        group: The processes that train it.
        options: The trainer's options.
    """

    def __init__(self, model: keras.Model, group: ProcessGroup, options: TrainerOptions) -> None:
        self._model = model
        self._group = group
        self._options = options
        self._needed = group.layout.workers > 1
        self._data: Any = None

    def check_call(self, arguments: dict[str, Any]) -> None:
        """Compares the arguments of `fit`, the model, its optimizers, losses and metrics.

        Raises:
            ConfigError: Something differs, or each worker would read its own batches.
        """
        if not self._needed:
            return
        self._data = arguments["x"]
        data = {name: arguments[argument] for argument, name in _DATA.items()}
        rest = {k: v for k, v in arguments.items() if k not in _DATA and k not in _OWN}
        require_same(self._group, describe_call(self._model, self._options, data, rest))
        self.check_order(arguments["validation_data"], "validation_data")

    def check_order(self, data: Any, argument: str = "data") -> None:
        """Rejects data that each worker would read in another order.

        Raises:
            ConfigError: The data shuffles without a seed.
        """
        if self._needed:
            require_an_order(argument, data)

    def check_first_batch(self, feed: Feed) -> None:
        """Compares the first global batch, where all workers read the whole of it.

        Raises:
            ConfigError: It differs.
        """
        data, self._data = self._data, None
        if not isinstance(feed, ShardedFeed):  # One device's.
            return
        first, feed.first_batch = feed.first_batch, None
        if self._needed and feed.whole and first is not None:
            require_same(self._group, describe_batch(first, random=is_random(data)))

    def check_before_save(self) -> None:
        """Compares all variables before a checkpoint of them is written.

        Raises:
            OutOfStepError: They differ.
        """
        if self._needed:
            self._compare_variables("before a checkpoint: ", OutOfStepError)

    def callbacks(self) -> list[keras.callbacks.Callback]:
        """Returns the callbacks that compare variables after the user's ones.

        They compare all variables before the first step and at each epoch's end, and the
        optimizers' rates, which schedules set, before the first step of each later epoch.
        """
        return [_Compare(self)] if self._needed else []

    def before_first_step(self, epoch: int, *, trained: bool) -> None:
        """Compares variables after the callbacks of an epoch's begin have run.

        Args:
            epoch: The number of the epoch, from 0.
            trained: Whether there was an epoch before it in this `fit`.

        Raises:
            ConfigError: They differ before any training, so the configuration is wrong.
            OutOfStepError: They differ.
        """
        if not trained:
            self._compare_variables("", ConfigError)
            return
        where = f"epoch {epoch + 1}, before its first step: "
        fields = describe_rates(self._model)
        require_same(self._group, fields, error=OutOfStepError, where=where)

    def after_epoch(self, epoch: int) -> None:
        """Compares all variables after the callbacks of an epoch's end have run.

        Raises:
            OutOfStepError: They differ.
        """
        self._compare_variables(f"epoch {epoch + 1}, at its end: ", OutOfStepError)

    def _compare_variables(self, where: str, error: type[ConfigError | OutOfStepError]) -> None:
        fields = describe_variables(self._model)
        require_same(self._group, fields, error=error, where=where)


class _Compare(keras.callbacks.Callback):
    """Compares the workers before the first step of each epoch and at its end."""

    # It is called before the first step of an epoch, whatever number of steps a call makes.
    reads_no_batches = True

    def __init__(self, consistency: WorkerConsistency) -> None:
        super().__init__()
        self._consistency = consistency
        self._begins = False
        self._trained = False
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begins = True
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._begins:
            return
        self._begins = False
        self._consistency.before_first_step(self._epoch, trained=self._trained)
        self._trained = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._consistency.after_epoch(epoch)


def checked_on_all_workers(method: _Method) -> _Method:
    """Makes a trainer's `fit` compare its arguments with the other workers' before all else.

    Args:
        method: A method of an object whose `_consistency` is the `WorkerConsistency` to ask.
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        self._consistency.check_call(bound.arguments)
        return method(self, *args, **kwargs)

    return wrapped  # type: ignore[return-value]
