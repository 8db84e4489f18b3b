"""One process of a contender that is TensorFlow's: `python -m tfdist.benchmark.peers.work ...`.

The arguments are a JSON object; see `Work`. The task of a cluster is in TF_CONFIG.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.benchmark.peers import own

BATCH = 32
LEARNING_RATE = 0.01


@dataclasses.dataclass(frozen=True)
class Work:
    """What a process is to do.

    Attributes:
        program: The name of a function of this module.
        output: Where the chief writes the seconds that they took.
        model: One of `measure.LENGTHS`.
        optimizer: "sgd" or "adamw".
        warm_up: Steps before the clock starts.
        steps: Steps on the clock.
        options: Arguments for `tfdist.Trainer`.
    """

    program: str
    output: str
    model: str = "small"
    optimizer: str = "sgd"
    warm_up: int = 0
    steps: int = 0
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def rows(work: Work, batches: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Drawn examples for some batches of a worker."""
    random = np.random.default_rng(0)
    shape = (16,) if work.model == "small" else (32, 32, 3)
    x = random.normal(size=(BATCH * batches, *shape)).astype("float32")
    return x, random.integers(0, 10, BATCH * batches).astype("int32")


def make_model(work: Work) -> Any:
    """The model that is trained, compiled."""
    import keras

    import tfdist

    if work.model != "small":
        model = tfdist.models.resnet50(
            (32, 32, 3), 10, synchronized_batch_norm=work.model == "resnet50_synchronized"
        )
    else:
        layers = keras.layers
        model = keras.Sequential(
            [keras.Input((16,)), layers.Dense(64, activation="relu"), layers.Dense(10)]
        )
    model.compile(_optimizer(keras, work), _loss(keras, work))
    return model


def _optimizer(keras: Any, work: Work) -> Any:
    if work.optimizer == "adamw":
        return keras.optimizers.AdamW(LEARNING_RATE)
    return keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)


def _loss(keras: Any, work: Work) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=work.model == "small")


def _data(work: Work, workers: int = 1) -> Any:
    """Global batches without end, in memory."""
    import tensorflow as tf

    x, y = rows(work, workers)
    return tf.data.Dataset.from_tensors((tf.constant(x), tf.constant(y))).repeat()


def _fit(fit: Callable[..., Any], callback_class: Any, work: Work, data: Any) -> float:
    """Fits an epoch of `warm_up` steps and one of `steps`; returns the seconds of the second."""
    times: list[float] = []

    class Clock(callback_class):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            times.append(time.perf_counter())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            times.append(time.perf_counter())

    length = work.steps
    epochs = 1 + -(-work.warm_up // length)
    fit(data, epochs=epochs, steps_per_epoch=length, verbose=0, callbacks=[Clock()])
    return times[-1] - times[-2]


def _timed(work: Work, step: Callable[[], Any], finish: Callable[[], Any] = lambda: None) -> float:
    for _ in range(work.warm_up):
        step()
    finish()
    began = time.perf_counter()
    for _ in range(work.steps):
        step()
    finish()
    return time.perf_counter() - began


def keras_fit(work: Work) -> float:
    """Keras' own `fit` on one device."""
    import keras

    return _fit(make_model(work).fit, keras.callbacks.Callback, work, _data(work))


def tfdist_alone(work: Work) -> float:
    """Each worker trains on its own."""
    os.environ.pop("TF_CONFIG", None)
    return tfdist_fit(work)


def tfdist_fit(work: Work) -> float:
    """`tfdist.Trainer` with the strategy of the cluster."""
    import keras

    import tfdist

    cluster = tfdist.Cluster.from_environment()
    if tfdist.serve(cluster):
        raise SystemExit(0)
    synchronous = "ps" not in cluster.jobs
    workers = len(cluster.jobs.get("worker", ["alone"])) if synchronous else 1
    strategy = tfdist.build_strategy("auto", cluster)
    with strategy.scope():
        model = make_model(work)
    return _fit(
        tfdist.Trainer(model, **work.options).fit,
        keras.callbacks.Callback,
        work,
        _data(work, workers),
    )


def tfdist_in_turn(work: Work) -> float:
    """`tfdist.Trainer`, which sends gradients when the backward pass is over."""
    from tfdist.collectives import choose

    choose._waiting_is_idle = lambda ring: False
    return tfdist_fit(work)


def _mirrored() -> Any:
    import tfdist

    tfdist.virtual_devices(2)
    return tfdist.mirrored_strategy()


def tfdist_mirrored(work: Work) -> float:
    """`tfdist.Trainer` on two virtual CPUs."""
    import keras

    import tfdist

    with _mirrored().scope():
        model = make_model(work)
    return _fit(tfdist.Trainer(model).fit, keras.callbacks.Callback, work, _data(work, 2))


def keras_mirrored(work: Work) -> float:
    """Keras' `fit` on two virtual CPUs."""
    import keras

    with _mirrored().scope():
        model = make_model(work)
    return _fit(model.fit, keras.callbacks.Callback, work, _data(work, 2))


def _step_of(model: Any) -> Callable[[Any, Any], Any]:
    """The step of TensorFlow's tutorials for a loop of one's own."""
    import tensorflow as tf

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.loss(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def mwms_loop(work: Work) -> float:
    """A loop as in TensorFlow's tutorial of MultiWorkerMirroredStrategy."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = make_model(work)
        model.optimizer.build(model.trainable_variables)
    iterator = iter(strategy.experimental_distribute_dataset(_data(work, 2)))
    step = _step_of(model)

    @tf.function
    def train(iterator: Any) -> Any:
        losses = strategy.run(step, args=next(iterator))
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    return _timed(work, lambda: train(iterator))


def coordinator_loop(work: Work) -> float:
    """A loop as in TensorFlow's tutorial of ParameterServerStrategy."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
            start=True,
        )
        server.join()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = make_model(work)
        model.optimizer.build(model.trainable_variables)
    step = _step_of(model)
    per_worker = coordinator.create_per_worker_dataset(lambda: _data(work))
    iterator = iter(per_worker)

    @tf.function
    def train(iterator: Any) -> Any:
        return strategy.run(step, args=next(iterator))

    return _timed(work, lambda: coordinator.schedule(train, args=(iterator,)), coordinator.join)


def tf_keras_fit(work: Work) -> float:
    """`fit` of tf-keras, which supports MultiWorkerMirroredStrategy."""
    import tensorflow as tf
    import tf_keras

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf_keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)
        model.compile(_optimizer(tf_keras, work), _loss(tf_keras, work))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    data = _data(work, 2).with_options(options)
    return _fit(model.fit, tf_keras.callbacks.Callback, work, data)


def _gradients() -> list[np.ndarray]:
    import tfdist

    weights = tfdist.models.resnet50((32, 32, 3), 10).trainable_variables
    return [np.ones(tuple(w.shape), np.float32) for w in weights]


def tensorflow_sum(work: Work) -> float:
    """The all-reduce that MultiWorkerMirroredStrategy makes of gradients."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    values = [tf.constant(array) for array in _gradients()]

    @tf.function
    def add_up() -> Any:
        def replica() -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, values)

        return strategy.run(replica)

    return _timed(work, add_up)


def ring_sum(work: Work) -> float:
    """The same by tfdist's ring, over its connections."""
    return _tfdist_sum(work, "ring")


def memory_sum(work: Work) -> float:
    """The same in memory that the workers of one host have in common."""
    return _tfdist_sum(work, "auto")


def _tfdist_sum(work: Work, name: str) -> float:
    import tensorflow as tf

    import tfdist
    from tfdist.collectives.choose import make_transport
    from tfdist.collectives.process_group import ProcessGroup

    strategy = tfdist.build_strategy("auto", tfdist.Cluster.from_environment())
    group = ProcessGroup(strategy)
    transport = make_transport(strategy, group, name)
    values = [tf.constant(array) for array in _gradients()]

    @tf.function
    def add_up() -> Any:
        return strategy.run(lambda: transport.sum_gradients(values))

    return _timed(work, add_up)


def until_lost(work: Work) -> float:
    """Trains until it is ended; writes the output when it has begun to."""
    import keras

    import tfdist

    class Begun(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 20 and os.environ["RANK"] == "0":
                Path(work.output).write_text("{}")

    strategy = tfdist.build_strategy("auto", tfdist.Cluster.from_environment())
    with strategy.scope():
        model = make_model(work)
    trainer = tfdist.Trainer(model, **work.options)
    trainer.fit(_data(work, 2), steps_per_epoch=10**6, verbose=0, callbacks=[Begun()])
    return 0.0


def prediction(work: Work) -> dict[str, Any]:
    """Trains for `tfdist bench prediction`."""
    import keras

    from tfdist.benchmark import prediction

    def seconds(fit: Callable[..., Any], workers: int) -> float:
        return _fit(fit, keras.callbacks.Callback, work, _data(work, workers)) / work.steps

    return prediction.train(lambda: make_model(work), seconds, **work.options)


def main(text: str) -> None:
    """Does the work, and writes how long it took where this task is the chief."""
    work = Work(**json.loads(text))
    task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {"type": "chief"})
    result = {**vars(own), **globals()}[work.program](work)
    name = "seconds" if isinstance(result, float) else work.program
    if task["type"] == "chief" or (task["type"], task["index"]) == ("worker", 0):
        Path(work.output).write_text(json.dumps({name: result}))
    # Servers of a cluster and their peers need not wait for each other.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
