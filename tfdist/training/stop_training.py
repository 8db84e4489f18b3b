"""Stops all workers when a callback on one of them sets `model.stop_training` or its like."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras

from tfdist.collectives.process_group import ProcessGroup
from tfdist.collectives.worker_flags import Flag, WorkerFlags
from tfdist.keras_internals import is_of_keras


class StopTraining:
    """Stops every worker after the same batch.

    It is the batch after which plain Keras would stop: if a callback may stop training after a
    batch, the workers exchange the flag there, else they receive it with the next step's
    metrics. Code that sets it between two callbacks, such as a thread, stops one batch later.

    All workers must create it, and call it, at the same points.

    Args:
        model: The model that trains.
        group: The processes that train it.
        flags: Carries the workers' flags.
        callbacks: This worker's callbacks, which may differ from the others'.
    """

    def __init__(
        self,
        model: keras.Model,
        group: ProcessGroup,
        flags: WorkerFlags,
        callbacks: Sequence[keras.callbacks.Callback],
    ) -> None:
        self._model = model
        self._group = group
        self._flags = flags
        own = any(_may_stop_after_batches(callback) for callback in callbacks)
        self._exchanges = any(group.exchange(int(own)))
        model.stop_training = False

    def before_call(self) -> None:
        """Sends this worker's flag with the call of TensorFlow that is about to begin."""
        self._flags.set(Flag.STOP_TRAINING, bool(self._model.stop_training))

    def after_call(self) -> bool:
        """Returns whether all workers stop now, after a call and its callbacks."""
        if self._exchanges or self._group.layout.workers == 1:
            return self.exchange()
        return self._stop_if(self._flags.seen(Flag.STOP_TRAINING))

    def exchange(self) -> bool:
        """Exchanges the flag with all workers; returns whether any of them wants to stop."""
        return self._stop_if(any(self._group.exchange(int(bool(self._model.stop_training)))))

    def _stop_if(self, stop: bool) -> bool:
        if stop:
            self._model.stop_training = True
        return stop


def stopped_together(
    model: keras.Model,
    flag: str,
    exchange: Callable[[int], list[int]],
    callbacks: Sequence[keras.callbacks.Callback],
) -> Callable[[], bool]:
    """Returns a function that tells, after a batch, whether a callback of any worker ends the pass.

    All workers must call it at the same point, and what it returns after each batch.

    Args:
        model: The model.
        flag: What the callback sets on it: "stop_evaluating" or "stop_predicting".
        exchange: Gives every worker's value of a number.
        callbacks: This worker's callbacks, which may differ from the others'.
    """
    setattr(model, flag, False)
    hook = {"stop_evaluating": "on_test_batch_end", "stop_predicting": "on_predict_batch_end"}[flag]
    own = any(not is_of_keras(getattr(callback, hook)) for callback in callbacks)
    may_stop = exchange(int(own))
    if len(may_stop) > 1 and not any(may_stop):
        return lambda: False
    return lambda: any(exchange(int(bool(getattr(model, flag)))))


def _may_stop_after_batches(callback: keras.callbacks.Callback) -> bool:
    """Returns whether the callback may stop training after a batch: only one of Keras' does."""
    hooks = [callback.on_train_batch_end, callback.on_batch_end]
    return isinstance(callback, keras.callbacks.TerminateOnNaN) or not all(map(is_of_keras, hooks))
