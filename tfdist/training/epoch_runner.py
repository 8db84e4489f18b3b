"""Runs one pass over the data: calls of the loop, with Keras' callbacks around each."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras

from tfdist.errors import ConfigError
from tfdist.training.input.feed import AnyFeed, Epoch
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
    step = first
    while _any_left(epoch, step):
        wanted = _wanted(epoch, step, limit.at(step - first))
        count = listener.before_training(wanted)
        every.on_train_batch_begin(step)
        stop_training.before_call()
        taken = epoch.taken
        began = time.perf_counter()
        logs = loop.train(epoch, count, logs=limit.reads_logs)
        seconds = time.perf_counter() - began
        last = step + (limit.most if epoch.several and count == wanted else count) - 1
        count = _made(epoch, taken, count)
        every.on_train_batch_end(last, logs)
        step += count
        listener.after_training(count)
        limit.record(count, seconds)
        if stop_training.after_call():
            return
    _require_any(epoch, step)


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
    step = 0
    while _any_left(epoch, step):
        count = _wanted(epoch, step, most)
        listener.before_evaluating(step)
        every.on_test_batch_begin(step)
        taken = epoch.taken
        logs = loop.test(epoch, count)
        last = step + (most if epoch.several else count) - 1
        count = _made(epoch, taken, count)
        every.on_test_batch_end(last, logs)
        step += count
        if stopped():
            return
    _require_any(epoch, step)


def train(
    feed: AnyFeed,
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
    feed: AnyFeed,
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
    feed: AnyFeed,
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
        not getattr(callback.on_predict_batch_end, "_is_default", False)
        for callback in every.callbacks
        if not isinstance(callback, keras.callbacks.ProgbarLogger)
    )
    step = 0
    while _any_left(epoch, step):
        count = _wanted(epoch, step, most)
        every.on_predict_batch_begin(step)
        taken = epoch.taken
        prediction = loop.predict(epoch, count)
        predictions.append(loop.fetch(prediction) if are_read else prediction)
        last = step + (most if epoch.several else count) - 1
        count = _made(epoch, taken, count)
        every.on_predict_batch_end(last, {"outputs": predictions[-1]})
        step += count
        if stopped():
            break
    _require_any(epoch, step)
    return loop.join(predictions if are_read else [loop.fetch(each) for each in predictions])


def _wanted(epoch: Epoch, step: int, most: int) -> int:
    """Returns the number of elements to request in a call."""
    if epoch.steps is None:
        return most if epoch.several else 1
    return min(most, epoch.steps - step)


def _made(epoch: Epoch, taken: int, wanted: int) -> int:
    """Returns the number of elements that a call has taken, which may be fewer than wanted."""
    return epoch.taken - taken if epoch.steps is None else wanted


def _any_left(epoch: Epoch, step: int) -> bool:
    return epoch.peek() if epoch.steps is None else step < epoch.steps


def _require_any(epoch: Epoch, step: int) -> None:
    if step == 0 and not epoch.may_be_empty:
        raise ConfigError("data: it has no batch; give at least one example")
