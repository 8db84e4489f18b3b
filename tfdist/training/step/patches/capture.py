"""Intercepts the calls that a model's step makes to its metrics and optimizers.

They cannot take effect at once, because the replicas' parts have to be summed first.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.training.model.inspection import flat_metrics
from tfdist.training.step.patches.row_sums import RowSums


class ScalarMeans(contextlib.AbstractContextManager["ScalarMeans"]):
    """Makes a `keras.metrics.Mean` that receives one number per batch a mean over batches.

    The number of a slice is weighted by the slice's share of the batch.

    Args:
        model: The model whose metrics they are.
    """

    def __init__(self, model: keras.Model) -> None:
        self._of_thread = threading.local()
        update_state = keras.metrics.Mean.update_state
        self._means = [
            metric
            for metric in flat_metrics(model)
            if isinstance(metric, keras.metrics.Mean) and type(metric).update_state is update_state
        ]

    def __enter__(self) -> ScalarMeans:
        for metric in self._means:
            metric.update_state = functools.partial(self._update, metric)
        return self

    def __exit__(self, *_: object) -> None:
        for metric in self._means:
            del metric.update_state

    def start(self, weight: tf.Tensor, sums: RowSums, whole: Callable[[], tf.Tensor]) -> None:
        """Begins a replica's step.

        Args:
            weight: The slice's share of the batch.
            sums: What the user's code sums over rows.
            whole: Returns the batch's rows over the slice's.
        """
        self._of_thread.weight = weight
        self._of_thread.sums = sums
        self._of_thread.whole = whole

    def _update(self, metric: keras.metrics.Mean, values: Any, sample_weight: Any = None) -> None:
        if sample_weight is None and len(keras.ops.shape(values)) == 0:
            sample_weight = self._of_thread.weight
            if metric.name in self._of_thread.sums.logs:
                factor = self._of_thread.whole()
                values = tf.cast(values, factor.dtype) * factor
        type(metric).update_state(metric, values, sample_weight=sample_weight)


class CapturedGradients(contextlib.AbstractContextManager["CapturedGradients"]):
    """Replaces the optimizer that a model's own `train_step` calls, and keeps the gradients.

    Args:
        model: The model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._of_thread = threading.local()

    def __enter__(self) -> CapturedGradients:
        optimizer = self._model.optimizer
        self._scale_loss = optimizer.scale_loss
        optimizer.apply = self._keep
        optimizer.scale_loss = self._scale
        return self

    def __exit__(self, *_: object) -> None:
        del self._model.optimizer.apply
        del self._model.optimizer.scale_loss

    def start(self) -> None:
        """Begins a replica's step."""
        self._of_thread.gradients = None
        self._of_thread.scaled = False

    def take(self, variables: Sequence[keras.Variable]) -> tuple[list[Any], tf.Tensor]:
        """Returns the gradients of `variables`, and their scale.

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

    def _keep(self, grads: Any, trainable_variables: Any = None) -> None:
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


@contextlib.contextmanager
def intercept_apply(
    optimizers: list[keras.optimizers.Optimizer], function: Callable[..., None]
) -> Iterator[None]:
    """Makes `apply` of the optimizers call a function, with the optimizer as first argument."""
    for optimizer in optimizers:
        optimizer.apply = functools.partial(function, optimizer)
    try:
        yield
    finally:
        for optimizer in optimizers:
            del optimizer.apply
