"""One process of a contender that is TensorFlow's: `python -m benchmarks.peers.work ...`.

The arguments are a JSON object; see `Work`. The task of a cluster is in TF_CONFIG.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.workload import data, fit_seconds, loss_of, make_model, optimizer_of
from tfdist.benchmark.processes import finish, is_first_task


@dataclasses.dataclass(frozen=True)
class Work:
    """What a process is to do.

    Attributes:
        program: The name of a function of this module.
        output: Where the first task writes the seconds that the steps took.
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


def _model(work: Work) -> Any:
    return make_model(work.model, work.optimizer)


def _fit(fit: Callable[..., Any], callback_class: Any, work: Work, data: Any) -> float:
    return fit_seconds(fit, callback_class, data, warm_up=work.warm_up, steps=work.steps)


def _timed(work: Work, step: Callable[[], Any], wait: Callable[[], Any] = lambda: None) -> float:
    for _ in range(work.warm_up):
        step()
    wait()
    began = time.perf_counter()
    for _ in range(work.steps):
        step()
    wait()
    return time.perf_counter() - began


def keras_fit(work: Work) -> float:
    """Keras' own `fit` on one device."""
    import keras

    return _fit(_model(work).fit, keras.callbacks.Callback, work, data(work.model))


def tfdist_alone(work: Work) -> float:
    """Each worker trains by itself."""
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
        model = _model(work)
    return _fit(
        tfdist.Trainer(model, **work.options).fit,
        keras.callbacks.Callback,
        work,
        data(work.model, workers),
    )


def tfdist_in_turn(work: Work) -> float:
    """`tfdist.Trainer`, which sends gradients when the backward pass is over."""
    from tfdist.collectives.choose import sending_after_backward

    with sending_after_backward():
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
        model = _model(work)
    return _fit(tfdist.Trainer(model).fit, keras.callbacks.Callback, work, data(work.model, 2))


def keras_mirrored(work: Work) -> float:
    """Keras' `fit` on two virtual CPUs."""
    import keras

    with _mirrored().scope():
        model = _model(work)
    return _fit(model.fit, keras.callbacks.Callback, work, data(work.model, 2))


def _step_of(model: Any) -> Callable[[Any, Any], Any]:
    """Returns the step of a custom loop, as in TensorFlow's tutorials."""
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
        model = _model(work)
        model.optimizer.build(model.trainable_variables)
    iterator = iter(strategy.experimental_distribute_dataset(data(work.model, 2)))
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
        model = _model(work)
        model.optimizer.build(model.trainable_variables)
    step = _step_of(model)
    per_worker = coordinator.create_per_worker_dataset(lambda: data(work.model))
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
        model.compile(optimizer_of(tf_keras, work.optimizer), loss_of(tf_keras, work.model))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    batches = data(work.model, 2).with_options(options)
    return _fit(model.fit, tf_keras.callbacks.Callback, work, batches)


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
    """The same in memory that the workers of one host share."""
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


def main(text: str) -> None:
    """Does the work, and writes how long it took if this is the first task."""
    work = Work(**json.loads(text))
    # Asked first, as some work changes TF_CONFIG.
    output = work.output if is_first_task() else None
    # Servers of a cluster and their peers need not wait for each other.
    finish({"seconds": globals()[work.program](work)}, output)


if __name__ == "__main__":
    main(sys.argv[1])
