"""Runs one pass over the data: calls of the loop, with Keras' callbacks around each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import keras

from tfdist.errors import ConfigError
from tfdist.keras_internals import is_default_hook
from tfdist.training.input.epoch import Epoch
from tfdist.training.input.feed import Feed
from tfdist.training.loops.base import Loop
from tfdist.training.options import StepLimit
from tfdist.training.session import Session, StepListener
from tfdist.training.stop_training import StopTraining, stopped_together


def train_epoch(
    epoch: Epoch,
    loop: Loop,
    every: keras.callbacks.CallbackList,
    listener: StepListener,
    stop_training: StopTraining,
    limit: StepLimit,
    *,
    first: int,
) -> None:
    """Trains on an epoch's elements, from number `first` on, in calls of several.

    Raises:
        ConfigError: There is no element.
        Preempted: A worker was asked to stop. Training is saved.
    """
    for call in _calls(epoch, lambda step: limit.at(step - first), first):
        call.count = listener.before_training(call.count)
        every.on_train_batch_begin(call.step)
        stop_training.before_call()
        began = time.perf_counter()
        logs = loop.train(epoch, call.count, logs=limit.reads_logs)
        seconds = time.perf_counter() - began
        every.on_train_batch_end(call.finish(), logs)
        listener.after_training(call.count)
        limit.record(call.count, seconds)
        if stop_training.after_call():
            return


def evaluate_epoch(
    epoch: Epoch,
    loop: Loop,
    every: keras.callbacks.CallbackList,
    listener: StepListener,
    *,
    most: int,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Evaluates on an epoch's elements, at most `most` of them per call, until `stopped`.

    Raises:
        ConfigError: There is no element.
        Preempted: A worker was asked to stop. Training is saved.
    """
    for call in _calls(epoch, lambda step: most):
        listener.before_evaluating(call.step)
        every.on_test_batch_begin(call.step)
        logs = loop.test(epoch, call.count)
        every.on_test_batch_end(call.finish(), logs)
        if stopped():
            return


def train(
    feed: Feed,
    epoch: Epoch,
    loop: Loop,
    every: keras.callbacks.CallbackList,
    session: Session,
    stop_training: StopTraining,
    limit: StepLimit,
) -> dict[str, Any]:
    """Trains on the rest of the session's epoch; returns the logs.

    Args:
        feed: The data.
        epoch: Its elements.
        loop: The loop for them.
        every: The callbacks.
        session: Follows training, and has its position.
        stop_training: Stops all workers when a callback of one of them does.
        limit: The largest number of elements per call.

    Raises:
        ConfigError: There is no element, or another number of them than when it was saved.
        Preempted: A worker was asked to stop. Training is saved.
    """
    first = session.position.step
    session.begin_epoch(epoch.steps)
    if not first:
        loop.reset_metrics()
    every.on_epoch_begin(session.position.epoch)
    train_epoch(epoch, loop, every, session, stop_training, limit, first=first)
    loop.finish_epoch()
    feed.end_epoch()
    session.trained()
    loop.publish()
    return loop.logs()


def evaluate(
    model: keras.Model,
    feed: Feed,
    epoch: Epoch,
    loop: Loop,
    every: keras.callbacks.CallbackList,
    listener: StepListener,
    *,
    exchange: Callable[[int], list[int]],
    most: int,
) -> dict[str, Any]:
    """Evaluates on all of the data; returns the logs.

    Args:
        model: The model.
        feed: The data.
        epoch: Its elements.
        loop: The loop for them.
        every: The callbacks.
        listener: Notified of each call.
        exchange: Exchanges an integer with all workers; returns all values.
        most: The largest number of elements per call.

    Raises:
        ConfigError: There is no element.
        Preempted: A worker was asked to stop. Training is saved.
    """
    listener.before_evaluating(0)
    stopped = stopped_together(model, "stop_evaluating", exchange, every.callbacks)
    every.on_test_begin()
    loop.reset_metrics()
    evaluate_epoch(epoch, loop, every, listener, most=most, stopped=stopped)
    loop.finish_epoch()
    feed.end_epoch()
    loop.publish()
    logs = loop.logs()
    every.on_test_end(logs)
    return logs


def predict(
    model: keras.Model,
    feed: Feed,
    epoch: Epoch,
    loop: Loop,
    every: keras.callbacks.CallbackList,
    *,
    exchange: Callable[[int], list[int]],
    most: int,
) -> Any:
    """Predicts an epoch's elements, at most `most` of them per call; returns all outputs.

    Args:
        model: The model.
        feed: The data.
        epoch: Its elements.
        loop: The loop for them.
        every: The callbacks.
        exchange: Exchanges an integer with all workers; returns all values.
        most: The largest number of elements per call.

    Raises:
        ConfigError: There is no element.
    """
    stopped = stopped_together(model, "stop_predicting", exchange, every.callbacks)
    every.on_predict_begin()
    outputs = predict_epoch(epoch, loop, every, most=most, stopped=stopped)
    feed.end_epoch()
    every.on_predict_end()
    return outputs


def predict_epoch(
    epoch: Epoch,
    loop: Loop,
    every: keras.callbacks.CallbackList,
    *,
    most: int = 1,
    stopped: Callable[[], bool] = lambda: False,
) -> Any:
    """Predicts an epoch's elements, at most `most` of them per call, until `stopped`.

    Raises:
        ConfigError: There is no element.
    """
    predictions: list[Any] = []
    # Where nobody looks at them earlier, outputs that are under way are fetched in the end.
    are_read = any(
        not is_default_hook(callback.on_predict_batch_end)
        for callback in every.callbacks
        if not isinstance(callback, keras.callbacks.ProgbarLogger)
    )
    for call in _calls(epoch, lambda step: most):
        every.on_predict_batch_begin(call.step)
        prediction = loop.predict(epoch, call.count)
        predictions.append(loop.fetch(prediction) if are_read else prediction)
        every.on_predict_batch_end(call.finish(), {"outputs": predictions[-1]})
        if stopped():
            break
    return loop.join(predictions if are_read else [loop.fetch(each) for each in predictions])


class _Call:
    """A call of TensorFlow for some elements of an epoch.

    Args:
        epoch: The epoch.
        step: The number of its first element.
        most: The largest number of elements.

    Attributes:
        step: As given.
        count: The number of elements to ask for, which may be lowered; after `finish`, the number
            that the call has taken.
    """

    def __init__(self, epoch: Epoch, step: int, most: int) -> None:
        self.step = step
        if epoch.steps is not None:
            self.count = min(most, epoch.steps - step)
        else:
            self.count = most if epoch.several else 1
        self._epoch = epoch
        self._most = most
        self._wanted = self.count
        self._taken = epoch.taken

    def finish(self) -> int:
        """Ends the call; returns the number that Keras gives callbacks for its last batch."""
        named = self._most if self._epoch.several and self.count == self._wanted else self.count
        if self._epoch.steps is None:
            self.count = self._epoch.taken - self._taken
        return self.step + named - 1


def _calls(epoch: Epoch, most: Callable[[int], int], step: int = 0) -> Iterator[_Call]:
    """Yields the calls of a pass over an epoch's elements.

    Args:
        epoch: The epoch.
        most: Returns the largest number of elements of the call that begins with a number.
        step: The number of the first element.

    Raises:
        ConfigError: There is no element.
    """
    while epoch.peek() if epoch.steps is None else step < epoch.steps:
        call = _Call(epoch, step, most(step))
        yield call
        step += call.count
    if step == 0 and not epoch.may_be_empty:
        raise ConfigError("data: it has no batch; give at least one example")
