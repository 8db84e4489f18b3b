"""A model of one weight, whose steps have exact results in float32, and loops that train it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.collectives.layout import ReplicaLayout
from tfdist.collectives.process_group import ProcessGroup
from tfdist.collectives.worker_flags import WorkerFlags
from tfdist.training.feeds import Feeds
from tfdist.training.input.adapters import FunctionBatches
from tfdist.training.input.feed import Feed, ShardedFeed
from tfdist.training.loops.select import LoopOptions, Loops

RATE = 2.0**-4
BATCH = 4
# Batches of 4, 4 and 1 rows: the last leaves replicas without any.
X = np.array([1, 2, -1, 2, 1, 1, 2, -2, 1], "float32")[:, None]
Y = np.array([3, 1, 2, -2, 5, 1, 0, 2, 7], "float32")[:, None]


def strategy_of(name: str, devices: Sequence[str]) -> tf.distribute.Strategy:
    """The strategy `name`, or `name@N` for N devices."""
    name, _, count = name.partition("@")
    if name == "one_device":
        return tfdist.one_device_strategy(devices[0])
    return getattr(tfdist, f"{name}_strategy")(devices[: int(count or 2)])


def linear(
    strategy: tf.distribute.Strategy,
    kind: type[keras.Sequential] = keras.Sequential,
    **options: Any,
) -> keras.Model:
    """A compiled model of one weight, which is zero."""
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = kind([keras.Input((1,)), layer])
        arguments = {"optimizer": keras.optimizers.SGD(RATE), "loss": "mse", "metrics": ["mae"]}
        model.compile(**(arguments | options))
    return model


def weight(model: keras.Model) -> float:
    return float(model.get_weights()[0][0, 0])


def loops_of(model: keras.Model, **options: Any) -> Loops:
    group = ProcessGroup(model.distribute_strategy)
    return Loops(model, group, WorkerFlags(), LoopOptions(**options))


def feed_of(loops: Loops, x: Any = X, y: Any = None, **options: Any) -> Feed:
    """The feed of arrays, in batches of four, or of anything else, as a Trainer makes it."""
    if x is X:
        y, options = Y, {"batch_size": BATCH} | options
    of_keras = loops.runs_keras_steps
    feeds = Feeds(loops._model, loops._group, of_keras=of_keras, steps_a_call=lambda: 1)
    return feeds.make(x, y, None, **({"batch_size": None} | options))


def shard_feed(batch: int = BATCH) -> ShardedFeed:
    """Batches of a worker's own: only together do the workers know the size of a global one."""
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch)
    layout = ReplicaLayout()
    batches = FunctionBatches(lambda context: rows, layout, None)
    return ShardedFeed(batches, layout=layout, whole=False)


def plain_weights(batch: int = BATCH, epochs: int = 1) -> list[float]:
    """The weight after each step of plain gradient descent, in float64."""
    found, value = [], 0.0
    for _ in range(epochs):
        for first in range(0, len(X), batch):
            x, y = (a[first : first + batch].astype("float64") for a in (X, Y))
            value -= RATE * float(np.mean(2 * (value * x - y) * x))
            found.append(value)
    return found


def plain_logs(weights: Sequence[float], batch: int = BATCH) -> dict[str, float]:
    """The metrics of steps that began with these weights."""
    errors = [
        value * X[i * batch : (i + 1) * batch] - Y[i * batch : (i + 1) * batch]
        for i, value in enumerate(weights)
    ]
    error = np.concatenate(errors).astype("float64")
    rows = np.float32(len(error))
    return {
        "loss": float(np.float32(np.sum(error**2)) / rows),
        "mae": float(np.float32(np.sum(np.abs(error))) / rows),
    }


def numbers(logs: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in logs.items()}
