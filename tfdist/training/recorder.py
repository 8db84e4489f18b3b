"""What the code of a model's step asks of the optimizer and the metrics, taken down.

Nothing of it may happen at once: the replicas' parts have to be added up first.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.training.updates_within import UpdatesWithin


def overrides(model: keras.Model, method: str) -> bool:
    """Says whether the model's class has a `method` of its own."""
    return getattr(type(model), method) is not getattr(keras.Model, method)


class Recorder(contextlib.AbstractContextManager["Recorder"]):
    """Stands between the code of a model's step and the optimizer and metrics it calls.

    It takes down the gradients that an overridden `train_step` hands to the optimizer. And a
    `keras.metrics.Mean` that is given one number a batch is a mean over batches: the number of
    a slice counts for the slice's share of the batch.

    It is entered around `strategy.run`, as the replicas, which are threads that take turns,
    share the optimizer and the metrics.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self.within = UpdatesWithin(model)
        self._active = overrides(model, "train_step") and not self.within.active
        self._of_thread = threading.local()
        update_state = keras.metrics.Mean.update_state
        self._means = [
            metric
            for metric in flat_metrics(model)
            if isinstance(metric, keras.metrics.Mean) and type(metric).update_state is update_state
        ]

    def __enter__(self) -> Recorder:
        self.within.__enter__()
        for metric in self._means:
            metric.update_state = functools.partial(self._update_mean, metric)
        if self._active:
            optimizer = self._model.optimizer
            self._scale_loss = optimizer.scale_loss
            optimizer.apply = self._record
            optimizer.scale_loss = self._scale
        return self

    def __exit__(self, *_: object) -> None:
        self.within.__exit__()
        for metric in self._means:
            del metric.update_state
        if self._active:
            del self._model.optimizer.apply
            del self._model.optimizer.scale_loss

    def start(self, weight: tf.Tensor) -> None:
        """Begins a replica's step, whose slice is the share `weight` of the batch."""
        self._of_thread.weight = weight
        self._of_thread.gradients = None
        self._of_thread.scaled = False

    def _update_mean(
        self, metric: keras.metrics.Mean, values: Any, sample_weight: Any = None
    ) -> None:
        if sample_weight is None and len(keras.ops.shape(values)) == 0:
            sample_weight = self._of_thread.weight
        type(metric).update_state(metric, values, sample_weight=sample_weight)

    def take(self, variables: Sequence[keras.Variable]) -> tuple[list[Any], tf.Tensor]:
        """The recorded gradients of `variables`, and what they are scaled by already.

        Raises:
            ConfigError: The step did not call the optimizer.
        """
        gradients = self._of_thread.gradients
        if gradients is None:
            raise ConfigError(
                f"{type(self._model).__name__}.train_step: never calls self.optimizer.apply or "
                "apply_gradients, so there is nothing to train with; call it, or override "
                "compute_loss instead"
            )
        scale = tf.constant(1.0)
        if self._of_thread.scaled:
            scale = tf.cast(self._scale_loss(scale), tf.float32)
        return [gradients.get(id(v)) for v in variables], scale

    def _scale(self, loss: tf.Tensor) -> tf.Tensor:
        self._of_thread.scaled = True
        return self._scale_loss(loss)

    def _record(self, grads: Any, trainable_variables: Any = None) -> None:
        if self._of_thread.gradients is not None:
            raise ConfigError(
                f"{type(self._model).__name__}.train_step: calls optimizer.apply more than once a "
                "step; allowed: once, as in Keras' guide to custom train steps"
            )
        variables = self._model.trainable_variables
        if trainable_variables is not None:
            variables = list(trainable_variables)
        self._of_thread.gradients = {
            id(v): gradient for v, gradient in zip(variables, list(grads), strict=True)
        }


def flat_metrics(model: keras.Model) -> Iterator[keras.Metric]:
    """The model's metrics in their order, those inside compiled metrics and losses too."""
    seen: set[int] = set()
    stack = list(reversed(model.metrics))
    while stack:
        metric = stack.pop()
        if id(metric) in seen:
            continue
        seen.add(id(metric))
        inner = getattr(metric, "metrics", None)
        if inner:
            stack.extend(reversed(inner))
        else:
            yield metric
