"""Selects the kind of a model's training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfdist.collectives.transport import Transport
from tfdist.training.model.inspection import ModelVariables, has_several_optimizers, overrides
from tfdist.training.step.own_step import MultiOptimizerStep, SingleOptimizerStep
from tfdist.training.step.packing import values_of
from tfdist.training.step.patches.loss_sums import Compares
from tfdist.training.step.probes.loss_probe import compares_examples
from tfdist.training.step.replica import KerasStep, ReplicaStep


def make_step(
    model: keras.Model,
    transport: Transport,
    *,
    gathers_metrics: bool,
    weights_add_up: bool = True,
    accumulates: bool = False,
    updates_within: bool = False,
    strategy: tf.distribute.Strategy | None = None,
    compares: Compares = compares_examples,
    read: Callable[[Sequence[keras.Variable]], list[tf.Tensor]] = values_of,
) -> ReplicaStep:
    """Makes the step of a built and compiled model.

    Args:
        model: The model.
        transport: Sums over the replicas.
        gathers_metrics: Whether compiled metrics are updated by all replicas together.
        weights_add_up: Whether the slices' weights add up to one over the replicas.
        accumulates: Whether several batches make an update.
        updates_within: Whether the model's own step reads the weights after their update.
        strategy: The strategy that the step runs under; by default the model's.
        compares: Returns whether a loss compares the examples of a batch.
        read: Returns the values of variables.
    """
    variables = ModelVariables.of(model)
    own = model.compiled and overrides(model, "train_step")  # Else it only predicts.
    if updates_within or (own and has_several_optimizers(model)):
        return MultiOptimizerStep(
            model,
            variables,
            transport,
            gathers_metrics=gathers_metrics,
            weights_add_up=weights_add_up,
            strategy=strategy,
            compares=compares,
            read=read,
        )
    kind = SingleOptimizerStep if own else KerasStep
    return kind(
        model,
        variables,
        transport,
        gathers_metrics=gathers_metrics,
        accumulates=accumulates,
        strategy=strategy,
        compares=compares,
        read=read,
    )
