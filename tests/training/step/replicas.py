"""Two replicas that compute parts of a step on seven rows, as the training loop has them do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.collectives.layout import ReplicaLayout
from tfdist.collectives.tensorflow import TensorFlowTransport
from tfdist.collectives.transport import SingleReplica, Transport
from tfdist.training.input.batch import loosen
from tfdist.training.step.build import build
from tfdist.training.step.replica import ReplicaOutput, ReplicaStep
from tfdist.training.step.slicing import Slicer, Weighing, by_batch

_RANDOM = np.random.default_rng(5)
X = _RANDOM.normal(size=(7, 3)).astype("float32")
Y = _RANDOM.normal(size=(7, 1)).astype("float32")


def dense() -> keras.Model:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


class Pair(keras.Model):
    """As a GAN: the head is updated first, and the tail by a loss that goes through the head."""

    def __init__(self) -> None:
        super().__init__()
        self.tail = keras.layers.Dense(4, "tanh")
        self.head = keras.layers.Dense(1)
        self.second = keras.optimizers.Adam(0.1, weight_decay=0.01)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.build((None, 3))

    def build(self, shape):
        self.tail.build(shape)
        self.head.build((None, 4))
        self.built = True

    def call(self, x):
        return self.head(self.tail(x))

    def updates(self):
        head, tail = self.head.trainable_variables, self.tail.trainable_variables
        return [(self.optimizer, head), (self.second, tail)]

    def train_step(self, data):
        x, y = data[:2]
        for optimizer, variables in self.updates():
            with tf.GradientTape() as tape:
                loss = keras.ops.mean((self(x) - y) ** 2)
            optimizer.apply(tape.gradient(loss, variables), variables)
        self.loss_tracker.update_state(loss)
        return {"loss": loss}


def make_pair(kind: type[keras.Model] = Pair) -> keras.Model:
    """A model whose step has two optimizers, compiled."""
    model = kind()
    model.compile(keras.optimizers.SGD(0.5))
    return model


def number(variable: keras.Variable) -> float:
    """The value of a scalar variable, of any strategy."""
    return float(variable.numpy())


def transport_of(strategy: tf.distribute.Strategy) -> Transport:
    replicas = strategy.num_replicas_in_sync
    return SingleReplica() if replicas == 1 else TensorFlowTransport(replicas)


def slicer_of(strategy: tf.distribute.Strategy, data: Any, weighing: Weighing = by_batch) -> Slicer:
    replicas = strategy.num_replicas_in_sync
    slicer = Slicer(ReplicaLayout(0, 1, replicas, replicas), whole=True, weighing=weighing)
    slicer.take_sample(tensors(data))
    return slicer


def tensors(data: Any) -> Any:
    return tf.nest.map_structure(tf.convert_to_tensor, data)


def built(
    strategy: tf.distribute.Strategy, make: Callable[[], keras.Model], sample: Any = (X, Y)
) -> keras.Model:
    """A compiled model under a strategy, with the same weights at every call."""
    with strategy.scope():
        model = make()
    build(model, strategy, tensors(sample))
    random = np.random.default_rng(9)
    for variable in model.trainable_variables:
        variable.assign(random.normal(size=variable.shape) / 2)
    return model


def plain(make: Callable[[], keras.Model], sample: Any = (X, Y)) -> keras.Model:
    """The same model on one device, without a strategy."""
    return built(tf.distribute.get_strategy(), make, sample)


def on_each(strategy: tf.distribute.Strategy, function: Callable[[], Any]) -> list[Any]:
    """What each replica computes in a graph, as arrays, in the replicas' order."""
    graph = tf.function(lambda: strategy.run(function), autograph=False)
    found = graph.get_concrete_function()()

    def of(replica: int) -> Any:
        def pick(value: Any) -> Any:
            values = strategy.experimental_local_results(value)
            own = values[replica] if len(values) > 1 else values[0]
            return None if own is None else np.asarray(tf.convert_to_tensor(own))

        return tf.nest.map_structure(pick, found)

    return [of(replica) for replica in range(strategy.num_replicas_in_sync)]


def train(
    strategy: tf.distribute.Strategy,
    step: ReplicaStep,
    data: Any = (X, Y),
    weighing: Weighing = by_batch,
    loss_scale: float | None = None,
) -> list[ReplicaOutput]:
    """What each replica's training step gives for its slice of a batch."""
    data = tensors(data)
    slicer = slicer_of(strategy, data, weighing)
    rows = len(tf.nest.flatten(data)[0])

    def replica() -> ReplicaOutput:
        scale = None if loss_scale is None else tf.constant(loss_scale)
        return step.train(slicer((loosen(data), rows)), loss_scale=scale)

    with step.intercepting():
        return on_each(strategy, replica)


def added(values: list[list[Any]]) -> list[Any]:
    """The replicas' tensors, added up by hand."""
    return [sum(parts) for parts in zip(*values, strict=True)]
