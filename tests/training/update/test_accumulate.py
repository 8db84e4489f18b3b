"""An update from the gradients of several batches is that of one large batch."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.training.step.replicas import X, Y, built, dense, plain, slicer_of, tensors, transport_of
from tfdist.collectives.layout import ReplicaLayout
from tfdist.collectives.worker_flags import WorkerFlags
from tfdist.training.model.inspection import ModelVariables
from tfdist.training.step.metrics import MetricTotals
from tfdist.training.step.recording import AddedUp
from tfdist.training.step.reduction import Reduced, Reduction
from tfdist.training.step.replica import KerasStep
from tfdist.training.step.slicing import by_nominal
from tfdist.training.update.accumulate import AccumulatingUpdate
from tfdist.training.update.apply import OptimizerUpdate


def graph(function):
    return tf.function(function, autograph=False, reduce_retracing=True)


def make() -> keras.Model:
    model = dense()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


class Accumulating:
    """A model under a strategy, each of whose updates takes several batches."""

    def __init__(self, strategy, batches: int) -> None:
        self.model = model = built(strategy, make)
        variables = ModelVariables.of(model)
        replicas = strategy.num_replicas_in_sync
        transport = transport_of(strategy)
        step = KerasStep(model, variables, transport)
        reduction = Reduction(
            transport, AddedUp(MetricTotals(model)), WorkerFlags(), weights_add_up=False
        )
        self.update = AccumulatingUpdate(
            OptimizerUpdate(model.optimizer, variables.trainable, strategy),
            batches,
            variables.trainable,
            strategy,
            ReplicaLayout(0, 1, replicas, replicas),
            transport,
            graph,
        )
        slicer = slicer_of(strategy, (X, Y), by_nominal(3))

        def train(data, rows) -> None:
            def replica() -> Reduced:
                piece = slicer((data, rows))
                output = step.train(piece, loss_scale=self.update.loss_scale())
                return reduction(output, piece, self.update.take(output.gradients, piece))

            with step.intercepting():
                reduced = Reduced(*strategy.run(replica))
            self.update.apply(reduced)

        self._train = graph(train)

    def train(self, begin: int, end: int) -> None:
        self._train(tensors((X[begin:end], Y[begin:end])), tf.constant(end - begin))

    def same_as(self, other: keras.Model) -> bool:
        return all(
            np.allclose(a, b, rtol=1e-5, atol=1e-6)
            for a, b in zip(self.model.get_weights(), other.get_weights(), strict=True)
        )


PLACES = [("mirrored_strategy", 2), ("central_storage_strategy", 2), ("one_device_strategy", 1)]


@pytest.mark.parametrize(("build", "replicas"), PLACES)
def test_three_batches_of_any_size_are_one_large_batch(devices, build, replicas):
    strategy = getattr(tfdist, build)(devices[:2] if replicas > 1 else devices[0])
    several, alone = Accumulating(strategy, 3), plain(make)
    for _ in range(2):
        for begin, end in ((0, 3), (3, 6), (6, 7)):  # The last one is short.
            assert several.same_as(alone)
            several.train(begin, end)
        alone.train_on_batch(X, Y)
        assert several.same_as(alone)
        assert several.update.is_complete()
    assert int(several.model.optimizer.iterations.numpy()) == 2


def test_what_is_left_at_the_end_of_an_epoch_is_an_update_of_its_own(devices):
    strategy = tfdist.mirrored_strategy(devices[:2])
    several, alone = Accumulating(strategy, 3), plain(make)
    several.update.finish()  # Nothing was taken.
    assert int(several.model.optimizer.iterations.numpy()) == 0
    several.train(0, 3)
    several.train(3, 5)
    assert not several.update.is_complete()
    several.update.finish()
    alone.train_on_batch(X[:5], Y[:5])
    assert several.same_as(alone)
    assert several.update.is_complete()
    assert several.update.finish() is None
    assert int(several.model.optimizer.iterations.numpy()) == 1


def test_calls_end_with_an_update_where_they_can(devices):
    several = Accumulating(tfdist.one_device_strategy(devices[0]), 3)
    assert [several.update.calls_to_end(count) for count in (1, 2, 3, 4, 10)] == [1, 2, 3, 3, 9]
    several.train(0, 3)
    assert [several.update.calls_to_end(count) for count in (1, 2, 3, 5, 10)] == [1, 2, 2, 5, 8]


def test_gradients_are_kept_back_and_the_loss_scale_is_the_optimizers(devices):
    strategy = tfdist.one_device_strategy(devices[0])
    with strategy.scope():
        weight = keras.Variable([0.0])
        scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=4.0)
        scaling.build([weight])
    update = AccumulatingUpdate(
        OptimizerUpdate(scaling, [weight], strategy),
        2,
        [weight],
        strategy,
        ReplicaLayout(),
        transport_of(strategy),
        graph,
    )
    assert float(update.loss_scale()) == 4.0
    sparse = tf.IndexedSlices(tf.constant([8.0]), tf.constant([0]), tf.constant([1]))
    for gradient in (tf.constant([4.0]), sparse, None):
        assert update.take([gradient], None) == []
    for _ in range(2):
        update.apply(Reduced([], [], [], {}, tf.constant(0.75), []))
    # (4 + 8) / (0.75 + 0.75) / 4
    np.testing.assert_allclose(weight.numpy(), [-2.0])
