"""What cannot work is refused before the first step, by name, with what to do."""

from __future__ import annotations

import numpy as np
import pytest

X = np.ones((8, 3), "float32")
Y = np.ones((8, 1), "float32")


@pytest.fixture
def mirrored(devices):
    import tfdist

    return tfdist.mirrored_strategy(devices[:2])


def dense():
    import keras

    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def refused(model, *named, options=None, **fit):
    import tfdist
    from tfdist.errors import ConfigError

    before = [w.copy() for w in model.get_weights()]
    with pytest.raises(ConfigError) as error:
        tfdist.Trainer(model, **(options or {})).fit(**({"x": X, "y": Y, "verbose": 0} | fit))
    message = str(error.value)
    assert "\n" not in message
    for part in named:
        assert part in message
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def test_model_that_is_not_compiled(mirrored):
    with mirrored.scope():
        model = dense()
    refused(model, "not compiled", "model.compile")


def test_model_or_optimizer_made_outside_the_scope(mirrored):
    import keras

    import tfdist
    from tfdist.errors import ConfigError

    optimizer = keras.optimizers.SGD(0.1)
    with mirrored.scope():
        model = dense()
        model.compile(optimizer, "mse")
    with pytest.raises(ConfigError, match=r"inside 'with strategy.scope"):
        tfdist.Trainer(model).fit(X, Y, verbose=0)


def test_two_optimizers(mirrored):
    import keras
    import tensorflow as tf

    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.part = keras.layers.Dense(1)
            self.second = keras.optimizers.SGD(0.1)

        def call(self, x):
            return self.part(x)

        def train_step(self, data):
            x, y = data
            for optimizer in (self.optimizer, self.second):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self(x) - y) ** 2)
                variables = self.trainable_variables
                optimizer.apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    with mirrored.scope():
        model = Two()
        model(X)
        model.second.build(model.trainable_variables)
        model.compile("sgd", "mse")
    refused(model, "Two.train_step", "same weights more than once a step")


def test_step_that_never_trains(mirrored):
    import keras

    class Idle(keras.Sequential):
        def train_step(self, data):
            return {"loss": 0.0}

    with mirrored.scope():
        model = Idle([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    refused(model, "Idle.train_step", "optimizer.apply", "compute_loss")


def test_own_step_with_a_metric_that_is_no_sum(mirrored):
    import keras

    class Largest(keras.Metric):
        def __init__(self):
            super().__init__(name="largest")
            self.value = self.add_variable((), "zeros", name="value")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

        def result(self):
            return keras.ops.convert_to_tensor(self.value)

    class Own(keras.Sequential):
        def test_step(self, data):
            return super().test_step(data)

    with mirrored.scope():
        model = Own([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[Largest()])
    refused(model, "largest", "Own.test_step", "MirroredStrategy")


def test_activity_regularizers_that_keras_does_not_average(mirrored, monkeypatch):
    import keras

    from tfdist.training.model import support

    monkeypatch.setattr(support, "_KERAS", (3, 13))
    with mirrored.scope():
        inner = keras.Sequential([keras.layers.Dense(3, activity_regularizer="l2", name="kept")])
        model = keras.Sequential([keras.Input((3,)), inner, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    refused(model, "layer 'kept'", "use Keras 3.14")


def test_activity_regularizers_of_several_batches(devices, monkeypatch):
    import keras

    from tfdist.training.model import support

    monkeypatch.setattr(support, "_KERAS", (3, 13))
    kept = keras.layers.Dense(3, activity_regularizer="l2", name="kept")
    model = keras.Sequential([keras.Input((3,)), kept, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    from tfdist.errors import ConfigError

    with pytest.raises(ConfigError, match="layer 'kept'.*accumulate_steps.*use Keras 3.14"):
        support.check_accumulation(model, 2)


def test_backup_and_restore(mirrored, tmp_path):
    import keras

    with mirrored.scope():
        model = dense()
        model.compile("sgd", "mse")
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    refused(model, "BackupAndRestore", "checkpoint_dir", callbacks=[backup])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"accumulate_steps": 0}, "accumulate_steps"),
        ({"steps_per_call": 0}, "steps_per_call"),
        ({"bytes_per_pack": -1}, "bytes_per_pack"),
        ({"wire_dtype": "int8"}, "int8"),
    ],
)
def test_trainer_arguments(devices, arguments, named):
    import tfdist
    from tfdist.errors import ConfigError

    model = dense()
    model.compile("sgd", "mse")
    with pytest.raises(ConfigError, match=named):
        tfdist.Trainer(model, **arguments)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("epochs", 1.5),
        ("epochs", "two"),
        ("batch_size", 2.5),
        ("batch_size", -1),
        ("class_weight", [1, 2]),
        ("callbacks", ["EarlyStopping"]),
        ("callbacks", [pytest.Item]),
        ("verbose", "loud"),
    ],
)
@pytest.mark.parametrize("place", ["one_device", "mirrored"])
def test_arguments_of_fit(devices, place, argument, value):
    import tfdist

    strategy = tfdist.one_device_strategy(devices[0])
    if place == "mirrored":
        strategy = tfdist.mirrored_strategy(devices[:2])
    with strategy.scope():
        model = dense()
        model.compile("sgd", "mse")
    refused(model, f"{argument}: ", " is given", **{argument: value})


def test_what_is_no_model():
    import keras

    import tfdist
    from tfdist.errors import ConfigError

    for given in (None, "resnet50", keras.layers.Dense(1)):
        with pytest.raises(ConfigError, match=r"Trainer\(model\): .* is given; allowed: a keras"):
            tfdist.Trainer(given)


@pytest.mark.parametrize("options", [{}, {"accumulate_steps": 2}], ids=["own step", "accumulated"])
def test_float8_where_the_largest_value_of_a_batch_is_not_seen(mirrored, options):
    import keras

    class OwnStep(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    with mirrored.scope():
        kind = keras.Sequential if options else OwnStep
        model = kind([keras.Input((2,)), keras.layers.Dense(1)])
        model.layers[-1].quantize("float8")
        model.compile("sgd", "mse")
    refused(model, "inputs_scale", "float8", options=options)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"x": X[:0], "y": Y[:0]}, "no batch"),
        ({"x": X, "y": Y[:5]}, "5 and 8 rows"),
        ({"x": X, "y": [1.0, 2.0]}, "row for each"),
        ({"validation_split": 1.5}, "validation_split"),
    ],
)
def test_data(mirrored, data, named):
    with mirrored.scope():
        model = dense()
        model.compile("sgd", "mse")
    refused(model, named, **data)


def test_endless_data_without_steps(mirrored):
    import tensorflow as tf

    with mirrored.scope():
        model = dense()
        model.compile("sgd", "mse")
    endless = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).repeat()
    refused(model, "steps_per_epoch", x=endless, y=None)
    refused(model, "batch_size", x=endless, y=None, batch_size=4)
    refused(model, "as well as data", x=endless, y=Y)


def test_a_step_that_takes_a_row_which_its_replica_does_not_have(mirrored):
    import keras
    import tensorflow as tf

    class Sides(keras.Sequential):
        """Takes batches of two sides, of any number of examples each."""

        def train_step(self, data):
            one, other = data[0], data[1]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(one) - self(other)) ** 2)
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"loss": loss}

    with mirrored.scope():
        model = Sides([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd")
    data = tf.data.Dataset.from_tensors(np.ones((2, 4, 3), "float32")).repeat(2)
    refused(model, "slice index 1", "first dimension", x=data, y=None)


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        (
            "fit",
            "batchsize",
            "fit(batchsize): is not an argument of Trainer's; did you mean 'batch",
        ),
        ("evaluate", "batchsize", "evaluate(batchsize): is not an argument of Trainer's; did you"),
        ("predict", "zzz", "predict(zzz): is not an argument of Trainer's; allowed: x, batch_size"),
    ],
)
def test_an_argument_that_there_is_not(method, given, said):
    import tfdist
    from tfdist.errors import ConfigError

    model = dense()
    model.compile("sgd", "mse")
    with pytest.raises(ConfigError) as error:
        getattr(tfdist.Trainer(model), method)(X, **{given: 3})
    assert str(error.value).startswith(said) and "\n" not in str(error.value)


@pytest.mark.parametrize("alone", [True, False])
def test_data_of_unknown_shape(mirrored, alone):
    import tensorflow as tf

    import tfdist

    def rows():
        yield X, Y

    data = tf.data.Dataset.from_generator(rows, output_types=(tf.float32, tf.float32))
    with (tfdist.one_device_strategy() if alone else mirrored).scope():
        model = dense()
        model.compile("sgd", "mse")
    told = ("does not know how many dimensions its tensors have (the model takes (None, 3))",)
    refused(model, *told, "output_signature", x=data.unbatch().batch(4), y=None)
    shaped = data.map(lambda x, y: (tf.ensure_shape(x, (None, 3)), tf.ensure_shape(y, (None, 1))))
    tfdist.Trainer(model).fit(shaped, verbose=0)


def test_a_step_of_a_sum_over_several_batches(devices):
    import keras
    import tensorflow as tf

    import tfdist

    class Summed(keras.Model):
        def __init__(self):
            super().__init__()
            self.d = keras.layers.Dense(1)

        def call(self, x):
            return self.d(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((y - self(x)) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables))
            return {"loss": loss}

    with tfdist.one_device_strategy(devices[0]).scope():
        model = Summed()
        model(np.ones((1, 3), "float32"))
        model.compile("sgd")
    refused(model, "Summed.train_step", "sum over rows", options={"accumulate_steps": 2})
