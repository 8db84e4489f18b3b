"""A model gets the step that its own `train_step` and its optimizers ask for."""

from __future__ import annotations

import keras
import pytest

from tests.training.step.replicas import plain
from tfdist.collectives.transport import SingleReplica
from tfdist.training.step.own_step import MultiOptimizerStep, SingleOptimizerStep
from tfdist.training.step.replica import KerasStep
from tfdist.training.step.select import make_step


class Own(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


@pytest.mark.parametrize(
    ("kind", "second", "within", "step"),
    [
        (keras.Sequential, False, False, KerasStep),
        (keras.Sequential, True, False, KerasStep),  # Keras' own step has no use for it.
        (Own, False, False, SingleOptimizerStep),
        (Own, False, True, MultiOptimizerStep),
        (Own, True, False, MultiOptimizerStep),
    ],
)
def test_the_kind_of_step(kind, second, within, step):
    def make() -> keras.Model:
        model = kind([keras.Input((3,)), keras.layers.Dense(1)])
        if second:
            model.second = keras.optimizers.SGD()
            model.second.build(model.trainable_variables)
        model.compile("sgd", "mse")
        return model

    model = plain(make)
    made = make_step(
        model,
        SingleReplica(),
        gathers_metrics=True,
        weights_add_up=False,
        accumulates=True,
        updates_within=within,
    )
    assert type(made) is step
    assert made.model is model
    assert [id(v) for v in made.variables.trainable] == [id(v) for v in model.trainable_variables]
    assert made._gathers_metrics
    if step is MultiOptimizerStep:
        assert not made._weights_add_up
    else:
        assert made._losses._accumulates
