"""One of two workers that differ: `python -m tests.training.differences FILE CASE...`.

Each case trains twice over the same few rows, with something else on worker 1 (or on the chief
only); what came of it is appended to FILE, a line a case.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.training.agreement.checksum import of_structure

CASES: dict[str, tuple[Callable[[bool], Any], str]] = {}
X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) > 0).astype("int32")
FOLDER = ""
STRATEGY: Any = None


def case(named: str) -> Callable[[Any], Any]:
    """Enters a case: what the error names on every worker, or "" where all is well."""

    def enter(make: Callable[[bool], Any]) -> Callable[[bool], Any]:
        CASES[make.__name__] = (make, named)
        return make

    return enter


def chosen() -> list[str]:
    """Returns the names of the cases to run: `make test` leaves some to the long runs."""
    return list(CASES)[:: 1 if os.environ.get("TFDIST_CONFORMANCE") == "full" else 3]


def batches(x: Any = X, y: Any = Y) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)


def model(
    optimizer: Any = None,
    loss: Any = "binary_crossentropy",
    metrics: Any = ("accuracy",),
    layers: Any = (),
    **dense: Any,
) -> keras.Model:
    with STRATEGY.scope():
        made = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8, **dense), *layers, keras.layers.Dense(1)]
        )
        optimizer = optimizer() if optimizer else keras.optimizers.SGD(0.1, 0.9)
        made.compile(optimizer, loss, metrics=list(metrics))
    return made


def fit(made: Any = None, trainer: Any = None, **fit: Any) -> keras.Model:
    made = made if made is not None else model()
    data: Any = {"x": X, "y": Y, "batch_size": 8} if "x" not in fit else {}
    options = {"verbose": 0, "epochs": 2, **data, **fit}
    tfdist.Trainer(made, **(trainer or {})).fit(**options)
    return made


# ---- weights and states ----


@case("weights.")
def weights_loaded_on_the_chief(other: bool) -> Any:
    made = model()
    if not other:
        made.set_weights([np.ones_like(weight) for weight in made.get_weights()])
    return fit(made)


@case("weights.")
def one_value_of_a_weight(other: bool) -> Any:
    made = model()
    weights = made.get_weights()
    weights[0][1, 2] += 1e-6 if other else 0
    made.set_weights(weights)
    return fit(made)


@case("state.optimizer.")
def momentum(other: bool) -> Any:
    made = model()
    with STRATEGY.scope():
        made.optimizer.build(made.trainable_variables)
    if other:
        made.optimizer.variables[2].assign(np.ones((4, 8), "float32"))
    return fit(made)


@case("weights.")
def statistics(other: bool) -> Any:
    with STRATEGY.scope():
        made = model(layers=[keras.layers.BatchNormalization()])
    made.layers[1].moving_mean.assign(np.full(8, float(other), "float32"))
    return fit(made)


@case("state.optimizer.learning_rate")
def a_schedule_on_the_chief(other: bool) -> Any:
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01)
    return fit(callbacks=[] if other else [scheduler])


@case("epoch 1, at its end: weights.")
def a_callback_that_sets_weights(other: bool) -> Any:
    made = model()
    change = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: made.set_weights([0 * w for w in made.get_weights()])
    )
    return fit(made, callbacks=[change] if other else [])


@case("epoch 2, before its first step: state.optimizer.learning_rate")
def a_callback_that_sets_the_rate_late(other: bool) -> Any:
    rate = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate if not epoch else 0.01)
    return fit(callbacks=[rate] if other else [])


@case("before a checkpoint: weights.")
def a_callback_before_a_checkpoint(other: bool) -> Any:
    made = model()
    change = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: made.set_weights([0 * w for w in made.get_weights()])
    )
    folder = os.path.join(FOLDER, "saves")
    options = {"checkpoint_dir": folder, "checkpoint_steps": 2}
    return fit(made, options, callbacks=[change] if other else [])


# ---- optimizer and compile ----


def _optimizer(name: str, field: str, kind: str, *values: Any) -> None:
    def make(other: bool) -> Any:
        options = {"learning_rate": 0.1} | ({field: values[other]} if values[other] else {})
        return fit(model(lambda: getattr(keras.optimizers, kind)(**options)))

    make.__name__ = name
    case(f"optimizer.{field}")(make)


_optimizer("clipnorm", "clipnorm", "SGD", None, 1.0)
_optimizer("beta", "beta_1", "Adam", 0.9, 0.8)
_optimizer("weight_decay", "weight_decay", "AdamW", 0.004, 0.1)


@case("optimizer.learning_rate.decay_steps")
def schedule(other: bool) -> Any:
    decay = keras.optimizers.schedules.CosineDecay(0.1, 5 + other)
    return fit(model(lambda: keras.optimizers.SGD(decay)))


class OwnSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule without `get_config`."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, step: Any) -> Any:
        return 0.1 / (1.0 + tf.cast(step, tf.float32) / self.steps)


@case("optimizer.learning_rate.steps")
def schedule_without_a_config(other: bool) -> Any:
    return fit(model(lambda: keras.optimizers.SGD(OwnSchedule(5 + other))))


@case("model.layers[0] dense.kernel_constraint")
def constraint(other: bool) -> Any:
    return fit(model(kernel_constraint=keras.constraints.MaxNorm(1 + other)))


@case("model.layers[0] dense.kernel_regularizer")
def regularizer(other: bool) -> Any:
    return fit(model(kernel_regularizer=keras.regularizers.L2(0.01) if other else None))


@case("model.layers[0] dense.activation")
def activation(other: bool) -> Any:
    return fit(model(activation="relu" if other else "tanh"))


@case("model.layers[0] dense.dtype")
def precision(other: bool) -> Any:
    return fit(model(dtype="mixed_bfloat16" if other else "float32"))


@case("compile.loss")
def loss(other: bool) -> Any:
    return fit(model(loss="mse" if other else "binary_crossentropy"))


def _own(y: Any, p: Any) -> Any:
    return tf.reduce_mean((tf.cast(y, tf.float32) - p) ** 2, -1)


def _other(y: Any, p: Any) -> Any:
    return tf.reduce_mean((tf.cast(y, tf.float32) - p) ** 4, -1)


_other.__qualname__ = _own.__qualname__


@case("compile.loss")
def own_loss(other: bool) -> Any:
    return fit(model(loss=_other if other else _own))


@case("compile.metrics")
def metrics(other: bool) -> Any:
    return fit(model(metrics=["mse"] if other else ["accuracy"]))


# ---- Trainer and fit ----


def _trainer(field: str, *values: Any, **more: Any) -> None:
    def make(other: bool) -> Any:
        return fit(trainer={field: values[other], **more})

    make.__name__ = field
    case(f"Trainer.{field}: the chief has {values[0]!r}, worker/1 has {values[1]!r}")(make)


_trainer("accumulate_steps", 1, 2)
_trainer("steps_per_call", 1, 2)
_trainer("wire_dtype", "auto", "bfloat16")


@case("Trainer.checkpoint_steps")
def checkpoint_steps(other: bool) -> Any:
    folder = os.path.join(FOLDER, "unused")
    return fit(trainer={"checkpoint_dir": folder, "checkpoint_steps": 1 + other})


@case("Trainer.checkpoint_seconds")
def checkpoint_seconds(other: bool) -> Any:
    folder = os.path.join(FOLDER, "unused")
    return fit(trainer={"checkpoint_dir": folder, "checkpoint_seconds": 5.0 + other})


@case("Trainer.checkpoint_dir")
def checkpoint_dir_on_the_chief(other: bool) -> Any:
    return fit(trainer={} if other else {"checkpoint_dir": os.path.join(FOLDER, "unused")})


def _fit(field: str, *values: Any, **more: Any) -> None:
    def make(other: bool) -> Any:
        return fit(**{field: values[other], **more})

    make.__name__ = field
    case(f"fit.{field}")(make)


_fit("epochs", 2, 3)
_fit("initial_epoch", 0, 1)
_fit("steps_per_epoch", 2, 3)
_fit("batch_size", 8, 16)
_fit("class_weight", {0: 1.0}, {0: 1.0, 1: 2.0})
_fit("shuffle", True, False)
_fit("validation_freq", 1, 2, validation_data=(X, Y))
_fit("validation_batch_size", 8, 16, validation_data=(X, Y))
_fit("validation_steps", 1, 2, validation_data=(X, Y))
_fit("validation_split", 0.0, 0.25)


@case("validation: the chief has None")
def validation_data(other: bool) -> Any:
    return fit(validation_data=(X, Y) if other else None)


# ---- data ----


@case("data[0]: ")
def arrays(other: bool) -> Any:
    return fit(x=X + np.float32(other) * np.eye(32, 4, dtype="float32"), y=Y, batch_size=8)


@case("data[0].examples")
def arrays_of_other_lengths(other: bool) -> Any:
    return fit(x=X[: 32 - other], y=Y[: 32 - other], batch_size=8)


@case("data: shuffle has no seed")
def unseeded_shuffle(other: bool) -> Any:
    tf.random.set_seed(None)  # As where the strategy was made by hand.
    try:
        data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(32).batch(8)
    finally:
        tf.random.set_seed(1)
    return fit(x=data)


@case("validation_data: shuffle has no seed")
def unseeded_shuffle_to_validate_on(other: bool) -> Any:
    tf.random.set_seed(None)
    try:
        data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(32).batch(8)
    finally:
        tf.random.set_seed(1)
    return fit(validation_data=data)


@case("data.shuffle[0].seed")
def seeds_of_shuffles(other: bool) -> Any:
    return fit(x=tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(32, seed=1 + other).batch(8))


@case("data.shuffle[0].seed")
def global_seeds(other: bool) -> Any:
    keras.utils.set_random_seed(1 + other)
    return fit(x=tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(32).batch(8))


@case("data.first_batch[0]")
def a_shuffle_read_once_more(other: bool) -> Any:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(32, seed=1).batch(8)
    if not other:
        next(iter(data))
    return fit(x=data)


@case("data: its order is not deterministic")
def no_order(other: bool) -> Any:
    options = tf.data.Options()
    options.deterministic = False
    return fit(x=batches().with_options(options))


@case("data.batches")
def one_batch_less(other: bool) -> Any:
    return fit(x=batches().take(4 - other))


@case("data.first_batch[0]")
def generators(other: bool) -> Any:
    order = np.random.default_rng(other).permutation(32)
    return fit(x=((X[order[i : i + 8]], Y[order[i : i + 8]]) for i in (0, 8)), steps_per_epoch=1)


class Numbers(keras.utils.PyDataset):
    """Batches in an order of their own."""

    def __init__(self, other: bool) -> None:
        super().__init__()
        self.order = np.random.default_rng(other).permutation(32)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        rows = self.order[index * 8 : index * 8 + 8]
        return X[rows], Y[rows]


@case("data.first_batch[0]")
def py_datasets(other: bool) -> Any:
    return fit(x=Numbers(other))


@case("data.examples: the chief has 32, worker/1 has 31")
def one_image_less(other: bool) -> Any:
    source = tfdist.data.load("synthetic", image_size=8, num_classes=2, num_examples=32 - other)
    with STRATEGY.scope():
        made = tfdist.models.small_cnn(source.image_shape, 2)
        made.compile("sgd", "sparse_categorical_crossentropy")
    return fit(made, x=source.train(8))


# ---- versions ----


@case("versions.keras")
def version_of_keras(other: bool) -> Any:
    version = keras.__version__
    keras.__version__ = "3.0.0" if other else version
    try:
        return fit()
    finally:
        keras.__version__ = version


# ---- what may differ ----


@case("")
def initial_weights(other: bool) -> Any:
    keras.utils.set_random_seed(5 + other)
    with STRATEGY.scope():
        dropout = keras.layers.Dropout(0.3)
    return fit(model(layers=[dropout]))


@case("")
def rates(other: bool) -> Any:
    """A rate is a variable, whose initial value TensorFlow takes from the chief."""
    made = fit(model(lambda: keras.optimizers.SGD(0.2 if other else 0.1)))
    assert float(made.optimizer.learning_rate.numpy()) == np.float32(0.1)
    return made


@case("")
def names(other: bool) -> Any:
    if other:
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.Dense(1)])
    return fit()


@case("")
def callbacks_and_verbosity(other: bool) -> Any:
    logger = keras.callbacks.CSVLogger(os.path.join(FOLDER, "log.csv"))
    return fit(callbacks=[] if other else [logger], verbose=2 if other else 0)


@case("")
def augmentation(other: bool) -> Any:
    data = tf.data.Dataset.from_tensor_slices((X, Y[:, 0])).shuffle(32, seed=1)
    augmented = data.map(lambda x, y: (x + tf.random.normal([4]), y), num_parallel_calls=2)
    return fit(x=augmented.batch(8))


@case("")
def shards(other: bool) -> Any:
    def read(context: tf.distribute.InputContext) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((X, Y))
        return data.shard(2, context.input_pipeline_id).shuffle(16).batch(4)

    return fit(x=read)


class Plain(keras.Model):
    """A model without `get_config`, that knows where it runs."""

    def __init__(self, factor: float, is_chief: bool) -> None:
        super().__init__()
        self.factor = factor
        self.is_chief = is_chief
        self.part = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.part(x) * self.factor


def _plain(factor: float, other: bool) -> Any:
    with STRATEGY.scope():
        made = Plain(factor, not other)
        made.compile("sgd", "mse")
    return fit(made)


@case("")
def own_model(other: bool) -> Any:
    return _plain(1.0, other)


class _SavesOnTheChief(keras.callbacks.Callback):
    """Makes variables on one worker only, as a user's callback may."""

    def __init__(self, other: bool) -> None:
        super().__init__()
        self._other = other

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._other:
            self.model.save(os.path.join(FOLDER, "own.keras"))

    def on_test_end(self, logs: Any = None) -> None:
        if not self._other:
            tf.Variable(1.0)

    on_predict_end = on_test_end


def _counting() -> keras.callbacks.Callback:
    """Makes a callback that has a variable."""
    mean = keras.metrics.Mean()
    return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: mean.update_state(epoch))


@case("")
def all_calls_in_the_scope(other: bool) -> Any:
    made, own = model(), _SavesOnTheChief(other)
    writer = keras.callbacks.ModelCheckpoint(os.path.join(FOLDER, "scope.keras"))
    with STRATEGY.scope():
        trainer = tfdist.Trainer(made)
        callbacks = [writer, own, tfdist.on_chief(_counting)]
        trainer.fit(X, Y, batch_size=8, verbose=0, callbacks=callbacks)
        trainer.save(os.path.join(FOLDER, "last.keras"))
        trainer.evaluate(X, Y, verbose=0, callbacks=[own])
        trainer.predict(X, verbose=0, callbacks=[own])
        assert tf.distribute.get_strategy() is STRATEGY
        # Made by all workers, and so by each of its replicas.
        assert STRATEGY.extended.variable_created_in_scope(tf.Variable(1.0))
    assert not tf.distribute.has_strategy()
    return made


@case("model.factor")
def own_models_number(other: bool) -> Any:
    return _plain(1.0 + other, other)


@case("")
def tutorial(other: bool) -> Any:
    """A shuffle without any seed, made under a strategy of tfdist's: the workers have one seed."""
    tf.random.set_seed(SEED)
    return fit(x=tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(32).batch(8))


def main(file: str, *names: str) -> None:
    global STRATEGY, FOLDER, SEED
    from tensorflow.python.eager import context

    FOLDER = os.path.dirname(file)
    cluster = tfdist.Cluster.from_environment()
    STRATEGY = tfdist.build_strategy("multi_worker_mirrored", cluster)
    SEED = context.global_seed()  # What the strategy left; the cases before may set others.
    other = cluster.task.index == 1
    for name in names or chosen():
        result = {"case": name, "type": "", "message": "", "weights": ""}
        tf.random.set_seed(1)
        try:
            trained = CASES[name][0](other)
            result["weights"] = " ".join(of_structure(trained.get_weights()))
        except tfdist.TfdistError as error:
            result |= {"type": type(error).__name__, "message": str(error)}
        with open(file, "a") as output:
            output.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
