"""`model.stop_training`, which a callback on one worker sets, and which then stops all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tfdist.training.place import Place
from tfdist.training.wishes import Wish, Wishes


class Stopping:
    """Stops every worker after the same batch.

    That is the batch plain Keras would stop after: where a callback has a say after each batch
    the workers exchange it there, else they learn of it with the next step's metrics. Only what
    stops training between two callbacks, such as a thread, does so a batch later.

    All workers must make it, and call it, at the same points.

    Args:
        model: The model that trains.
        place: This process's place in the strategy.
        wishes: Carries the workers' wishes to stop.
        callbacks: This worker's callbacks, which may differ from the others'.
    """

    def __init__(
        self,
        model: keras.Model,
        place: Place,
        wishes: Wishes,
        callbacks: Sequence[keras.callbacks.Callback],
    ) -> None:
        self._model = model
        self._place = place
        self._wishes = wishes
        own = any(_has_a_say_after_batches(callback) for callback in callbacks)
        self._exchanges = any(place.exchange(int(own)))

    def before_call(self) -> None:
        """Tells of a wish to stop with the call of TensorFlow that is about to begin."""
        self._wishes.wish(Wish.STOP, bool(self._model.stop_training))

    def after_call(self) -> bool:
        """Whether all workers stop now, after a call and its callbacks."""
        if self._exchanges or self._place.share.workers == 1:
            return self.agreed()
        if self._wishes.agreed(Wish.STOP):
            self._model.stop_training = True
            return True
        return False

    def agreed(self) -> bool:
        """Whether any worker's callbacks decided to stop: then all do."""
        stop = any(self._place.exchange(int(bool(self._model.stop_training))))
        self._model.stop_training = stop
        return stop


def _has_a_say_after_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether the callback may stop training after a batch: of Keras' own only one does."""
    hooks: list[Any] = [callback.on_train_batch_end, callback.on_batch_end]
    return isinstance(callback, keras.callbacks.TerminateOnNaN) or any(
        not (hook.__module__ or "").startswith("keras.") for hook in hooks
    )
