"""Lets each replica step on its own for a while, and then averages: less is sent.

Local SGD (Stich 2019, arXiv:1805.09767) averages the weights every few steps. DiLoCo (Douillard et
al. 2023, arXiv:2311.08105) takes the way to that average for a gradient, and makes a step of
Nesterov's momentum with it. Here the optimizer's own variables are averaged with the weights, so
that after an average all replicas are the same again and a checkpoint holds all there is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.layout import own_variable
from tfdist.collectives.transport import Transport
from tfdist.keras_internals import rate_of
from tfdist.training.step.gradients import divide_if_any
from tfdist.training.step.reduction import Reduced
from tfdist.training.step.slicing import Slice
from tfdist.training.update.apply import OptimizerUpdate, PeriodicUpdate


@dataclasses.dataclass(frozen=True)
class LocalSteps:
    """How replicas step on their own.

    Attributes:
        steps: Steps between averages.
        outer_learning_rate: The part of the way to the average that is made; 1 for all of it.
        outer_momentum: Of Nesterov's kind, for that way; 0 for none.
    """

    steps: int = 1
    outer_learning_rate: float = 1.0
    outer_momentum: float = 0.0

    @property
    def averages_only(self) -> bool:
        """Whether the weights become the average, as they are."""
        return self.outer_learning_rate == 1.0 and self.outer_momentum == 0.0


class LocalUpdate(PeriodicUpdate):
    """Each replica applies the gradients of its own rows; every few steps all are averaged.

    Args:
        optimize: Updates the weights.
        local: How often, and how, to average.
        optimizer: The model's optimizer.
        trainable: The weights, in the order of their gradients.
        strategy: The strategy they were made under, with one replica in this process.
        transport: Sums over the replicas.
        compiled: Compiles a Python function to a graph function.
    """

    def __init__(
        self,
        optimize: OptimizerUpdate,
        local: LocalSteps,
        optimizer: keras.optimizers.Optimizer,
        trainable: Sequence[keras.Variable],
        strategy: tf.distribute.Strategy,
        transport: Transport,
        compiled: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        super().__init__(optimize, local.steps, self._average, compiled)
        self._local = local
        self._trainable = list(trainable)
        # The rate is the same on all replicas, and callbacks set it.
        rate = rate_of(optimizer)
        self._averaged = [
            v for v in optimizer.variables if "float" in str(v.dtype) and v is not rate
        ]
        self._strategy = strategy
        self._transport = transport
        self._own: list[Any] = []
        self._own_weight: tf.Tensor | None = None
        zeros = [] if local.averages_only else [tf.zeros(v.shape, v.dtype) for v in trainable]
        self._start = [own_variable(zero) for zero in zeros]
        self._velocity = [own_variable(zero) for zero in zeros]

    @property
    @override
    def variables(self) -> list[tf.Variable]:
        return self._velocity

    @override
    def take(self, gradients: list[Any], piece: Slice) -> list[Any]:
        """Keeps a batch's gradients; returns none, as none is reduced with its batch."""
        self._own, self._own_weight = gradients, piece.weight
        return []

    @override
    def apply(self, reduced: Reduced) -> None:
        """Updates this replica's weights, and averages if it is the last step before that."""
        weight = self._own_weight
        assert weight is not None
        # All workers make the sums of the step before those of an average.
        summed = self._strategy.experimental_local_results(reduced.weight)[0]

        def remember() -> None:
            for start, variable in zip(self._start, self._trainable, strict=True):
                start.assign(variable.value)

        if self._start:
            tf.cond(tf.equal(self._taken, 0), remember, lambda: None)
        # Their weight is the rows' share of the global batch: without it, the mean of the rows.
        # Without rows there is no gradient.
        self._optimize([divide_if_any(gradient, weight) for gradient in self._own])
        with tf.control_dependencies([summed]):
            self._count()

    def _average(self) -> None:
        """Averages weights and the optimizer's variables, in cross-replica context."""
        variables = [*self._trainable, *self._averaged]
        means = self._strategy.run(lambda: self._means(variables))
        means = [self._strategy.experimental_local_results(mean)[0] for mean in means]
        weights = means[: len(self._trainable)]
        if self._start:
            weights = [
                self._outer(*each)
                for each in zip(weights, self._start, self._velocity, strict=True)
            ]
        for variable, value in zip(variables, [*weights, *means[len(weights) :]], strict=True):
            variable.value.assign(value)
        self._taken.assign(0)

    def _means(self, variables: list[keras.Variable]) -> list[tf.Tensor]:
        """Returns the means over replicas, in replica context."""
        sums = self._transport.sum([tf.convert_to_tensor(v.value) for v in variables])
        return [total / self._transport.replicas for total in sums]

    def _outer(self, mean: tf.Tensor, start: tf.Variable, velocity: tf.Variable) -> tf.Tensor:
        """Returns a weight after the outer step, with the way to the mean as its gradient."""
        way = start.read_value() - mean
        grown = velocity.assign(self._local.outer_momentum * velocity + way, read_value=True)
        ahead = way + self._local.outer_momentum * grown
        return start.read_value() - self._local.outer_learning_rate * ahead
