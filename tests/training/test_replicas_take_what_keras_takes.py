"""What Keras takes on one device goes on replicas too, with its numbers, or is refused."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.errors import ConfigError

layers = keras.layers


def strategies(devices):
    one = tfdist.one_device_strategy(devices[0])
    return one, tfdist.mirrored_strategy(devices[:2]), tfdist.central_storage_strategy(devices[:2])


def numbers(rows=8, width=2, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, width)).astype("float32")


def linear(*inner, shape=(2,)):
    model = keras.Sequential(
        [keras.Input(shape), *inner, layers.Dense(1, kernel_initializer="ones")]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


class Counting(layers.Layer):
    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.calls.assign_add(1.0)
        return x


def test_state_that_changes_in_evaluation_and_prediction_is_kept(devices):
    x, y = numbers(), numbers(width=1)
    for strategy in strategies(devices):
        with strategy.scope():
            counting = Counting()
            model = linear(counting)
        trainer = tfdist.Trainer(model)
        found = []
        for act in (
            lambda t: t.fit(x, y, batch_size=2, verbose=0),
            lambda t: t.evaluate(x, y, batch_size=2, verbose=0),
            lambda t: t.predict(x, batch_size=2, verbose=0),
        ):
            act(trainer)
            found.append(float(counting.calls.numpy()))
        assert found == [4.0, 8.0, 12.0], strategy


@pytest.mark.parametrize("first", ["fit", "evaluate"])
def test_what_is_trainable_is_so_until_the_next_compile_once_it_was_trained(devices, first):
    x, y = numbers(), numbers(width=1)
    wanted = None
    for strategy in (None, *strategies(devices)):
        with strategy.scope() if strategy else contextlib.nullcontext():
            inner = layers.Dense(2, kernel_initializer="ones")
            model = linear(inner)
        trainer = tfdist.Trainer(model) if strategy else model
        order = {"shuffle": False} if first == "fit" else {}
        getattr(trainer, first)(x, y, batch_size=4, verbose=0, **order)
        found = [inner.get_weights()[0]]
        inner.trainable = False
        trainer.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        found.append(inner.get_weights()[0])
        model.compile(model.optimizer, "mse")
        trainer.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        found.append(inner.get_weights()[0])
        assert (found[0] != found[1]).all() == (first == "fit")
        assert (found[1] == found[2]).all()
        wanted = wanted or found
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


class Unbuilt(keras.Model):
    """Its `build` makes nothing, and so leaves that to the first call."""

    def __init__(self):
        super().__init__()
        self.first, self.last = layers.Dense(3), layers.Dense(1)

    def build(self, shape):
        pass

    def call(self, x):
        return self.last(self.first(x))


class UnbuiltWithAStep(Unbuilt):
    def train_step(self, data):
        return super().train_step(data)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", [Unbuilt, UnbuiltWithAStep])
def test_prediction_may_be_what_makes_a_models_variables(devices, kind, compiled):
    x, found = numbers(), []
    for strategy in strategies(devices):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = kind()
            if compiled:
                model.compile("sgd", "mse")
            model.build((None, 2))
        assert model.built and not model.first.built
        found.append(tfdist.Trainer(model).predict(x, verbose=0))
        assert len(model.trainable_variables) == 4
        belongs = strategy.extended.variable_created_in_scope
        assert all(belongs(v.value) for v in model.trainable_variables)
    for each in found:
        np.testing.assert_allclose(each, found[0], rtol=1e-5)


def test_each_batch_of_a_prediction_draws_anew(devices):
    class Always(layers.Dropout):
        def call(self, x, training=None):
            return super().call(x, training=True)

    with tfdist.mirrored_strategy(devices[:2]).scope():
        model = keras.Sequential([keras.Input((8,)), Always(0.5, seed=3)])
    found = tfdist.Trainer(model).predict(np.ones((12, 8), "float32"), batch_size=4, verbose=0)
    assert len({part.tobytes() for part in np.split(found, 3)}) == 3


class Told(keras.callbacks.Callback):
    """Keeps every call, with the parameters of the time and the names in the logs."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def call(*args, logs=None):
            told = [sorted(each) if isinstance(each, dict) else each for each in (*args, logs)]
            self.calls.append((name, told, sorted(self.params.items())))

        return call


@pytest.mark.parametrize("place", [pytest.param("one_device", marks=pytest.mark.long), "mirrored"])
def test_callbacks_are_told_what_keras_tells_them(devices, place):
    def told(trainer_of, scope):
        with scope:
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse", metrics=["mae"])
        trainer, told = trainer_of(model), Told()
        x, y = np.ones((11, 3), "float32"), np.ones((11, 1), "float32")
        options = {"verbose": 0, "callbacks": [told]}
        trainer.fit(x, y, 2, epochs=2, validation_split=0.4, validation_freq=2, **options)
        trainer.evaluate(x, y, **options)
        trainer.evaluate(x, y, batch_size=2, steps=3, **options)
        trainer.predict(x, batch_size=5, **options)
        return told.calls

    scope = contextlib.nullcontext()
    if place == "mirrored":
        scope = tfdist.mirrored_strategy(devices[:2]).scope()
    wanted = told(lambda model: model, contextlib.nullcontext())
    assert len({call[0] for call in wanted}) == 14
    assert told(tfdist.Trainer, scope) == wanted


@pytest.mark.parametrize("place", [pytest.param("one_device", marks=pytest.mark.long), "mirrored"])
def test_evaluate_lists_a_metric_once_for_each_time_it_was_given(devices, place):
    """Keras has one name twice where a metric is weighted too, and gives its value twice."""

    def listed(trainer_of, scope):
        with scope:
            layer = keras.layers.Dense(1, kernel_initializer="ones")
            model = keras.Sequential([keras.Input((3,)), layer])
            model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mae"])
        x, y = np.arange(33, dtype="float32").reshape(11, 3), np.ones((11, 1), "float32")
        weights = np.arange(11) % 3
        return trainer_of(model).evaluate(x, y, sample_weight=weights, verbose=0)

    scope = contextlib.nullcontext()
    if place == "mirrored":
        scope = tfdist.mirrored_strategy(devices[:2]).scope()
    wanted = listed(lambda model: model, contextlib.nullcontext())
    assert len(wanted) == 4
    assert listed(tfdist.Trainer, scope) == pytest.approx(wanted)


class Largest(keras.metrics.Metric):
    """Keeps no sum."""

    def __init__(self):
        super().__init__(name="inner")
        self.kept = self.add_weight(shape=(), initializer="zeros")

    def update_state(self, values):
        self.kept.assign(keras.ops.maximum(self.kept, keras.ops.max(values)))

    def result(self):
        return self.kept


class OwnMetrics(keras.Sequential):
    """Reports a metric under another name, and leaves the loss out, as Keras' guide has it."""

    kind = keras.metrics.Mean

    def __init__(self, made):
        super().__init__(made)
        self.extra = self.kind() if self.kind is Largest else self.kind(name="inner")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        self.extra.update_state(keras.ops.abs(x))
        return {"mae": logs["mae"], "outer": self.extra.result()}


class OwnMetricsWithoutSums(OwnMetrics):
    kind = Largest


def with_metrics(kind, strategy):
    with strategy.scope():
        dense = layers.Dense(1, kernel_initializer="ones")
        model = kind([keras.Input((2,)), dense])
        model.compile("sgd", "mse", metrics=["mae"])
    return tfdist.Trainer(model)


@pytest.mark.parametrize(
    "kind", [pytest.param(OwnMetrics, marks=pytest.mark.long), OwnMetricsWithoutSums]
)
def test_what_compute_metrics_returns_is_reported_and_nothing_else(devices, kind):
    x, y = numbers(11), numbers(11, 1)
    found = []
    for strategy in strategies(devices):
        trainer = with_metrics(kind, strategy)
        history = trainer.fit(x, y, batch_size=4, shuffle=False, epochs=2, verbose=0).history
        found.append(history | trainer.evaluate(x, y, verbose=0, return_dict=True))
        assert set(found[-1]) == {"mae", "outer"}
    for name, value in found[0].items():
        for of_replicas in found[1:]:
            assert of_replicas[name] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    ("base", "said"), [(OwnMetrics, "'inner'"), (OwnMetricsWithoutSums, "'x'")]
)
def test_a_log_of_compute_metrics_that_no_replica_knows_is_refused(devices, base, said):
    class Own(base):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            logs = super().compute_metrics(x, y, y_pred, sample_weight)
            return logs | {"x": logs["outer"] * 2.0}

    trainer = with_metrics(Own, strategies(devices)[1])
    with pytest.raises(ConfigError, match=f"Own.compute_metrics: log .*{said}"):
        trainer.fit(numbers(), numbers(width=1), verbose=0)


def test_a_model_may_make_a_metric_when_its_metrics_are_first_asked_for(devices):
    class Late(keras.Sequential):
        late = None

        @property
        def metrics(self):
            self.late = self.late or keras.metrics.Mean(name="late")
            return [*super().metrics, self.late]

        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            self.late.update_state(loss)
            return loss

    x, y = numbers(8), numbers(8, 1)
    found = [with_metrics(Late, each).fit(x, y, verbose=0).history for each in strategies(devices)]
    assert found[1]["late"] == pytest.approx(found[0]["late"], rel=1e-6)
    assert found[2]["late"] == pytest.approx(found[0]["late"], rel=1e-6)


class Turning(keras.utils.PyDataset):
    """Rows that depend on what it was told, and as many batches as it was told."""

    def __init__(self):
        super().__init__()
        self.begun = self.ended = 0

    def __len__(self):
        return 3 + self.ended % 2

    def __getitem__(self, index):
        x = numbers(4, seed=100 * self.begun + 10 * self.ended + index)
        return x, x.sum(axis=1, keepdims=True)

    def on_epoch_begin(self):
        self.begun += 1

    def on_epoch_end(self):
        self.ended += 1


@pytest.mark.parametrize("shuffle", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_py_dataset_is_told_and_shuffled_as_on_one_device(devices, shuffle):
    def losses(strategy, trainer_of=tfdist.Trainer):
        keras.utils.set_random_seed(1)
        with strategy.scope() if strategy else contextlib.nullcontext():
            trainer = trainer_of(linear())
        data, held_out = Turning(), Turning()
        told = {"validation_data": held_out, "shuffle": shuffle, "epochs": 3, "verbose": 0}
        found = trainer.fit(data, **told).history
        found["evaluated"] = trainer.evaluate(held_out, verbose=0)
        found["predicted"] = trainer.predict(held_out, verbose=0).ravel().tolist()
        return found, [(each.begun, each.ended) for each in (data, held_out)]

    one, told = losses(None)
    if not shuffle:
        of_keras, told_by_keras = losses(None, lambda model: model)
        assert (one, told) == (of_keras, told_by_keras)
    for strategy in strategies(devices)[1:]:
        several, also_told = losses(strategy)
        assert also_told == told
        for name, values in one.items():
            assert several[name] == pytest.approx(values, rel=1e-5)


def test_batches_may_vary_in_length(devices):
    def batches():
        for length in (5, 7, 4):
            yield np.full((4, length), length, "int32"), np.ones((4, 1), "float32")

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return list(batches())[index]

    for make in (batches, Batches):
        losses = []
        for strategy in strategies(devices):
            keras.utils.set_random_seed(1)
            with strategy.scope():
                model = keras.Sequential(
                    [layers.Embedding(9, 4), layers.GlobalAveragePooling1D(), layers.Dense(1)]
                )
                model.compile("sgd", "mse")
            history = tfdist.Trainer(model).fit(make(), verbose=0, shuffle=False)
            losses.append(history.history["loss"])
        assert losses[1] == pytest.approx(losses[0], rel=1e-6)
        assert losses[2] == pytest.approx(losses[0], rel=1e-6)


def test_a_generator_that_has_ended_leaves_later_epochs_empty(devices):
    with tfdist.mirrored_strategy(devices[:2]).scope():
        model = linear()
    batches = ((numbers(4, seed=i), numbers(4, 1, seed=i)) for i in range(3))
    with pytest.warns(UserWarning, match="ran out of data.*ended after 0 steps of epoch 2"):
        history = tfdist.Trainer(model).fit(batches, epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2
    assert int(model.optimizer.iterations.numpy()) == 3


def test_a_part_may_be_none(devices):
    class Add(layers.Layer):
        def call(self, x, y=None):
            return x if y is None else x + y

        def compute_output_shape(self, x_shape, y_shape=None):
            return x_shape

    losses = []
    for strategy in strategies(devices):
        with strategy.scope():
            a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b", optional=True)
            model = keras.Model([a, b], layers.Dense(1, kernel_initializer="ones")(Add()(a, b)))
            model.compile("sgd", "mse")
        x = [numbers(width=3), None]
        fitted = tfdist.Trainer(model).fit(x, numbers(width=1), shuffle=False, verbose=0)
        losses.append(fitted.history["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_a_metric_may_keep_its_state(devices):
    found = []
    for strategy in strategies(devices):
        with strategy.scope():
            model = linear()
            model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[Seen()])
        fitted = tfdist.Trainer(model).fit(
            numbers(), numbers(width=1), epochs=2, verbose=0, shuffle=False, batch_size=4
        )
        found.append(fitted.history["rows"])
    assert found == [[8.0, 16.0]] * 3


class Seen(keras.metrics.Metric):
    """Counts rows, and is not reset."""

    def __init__(self):
        super().__init__(name="rows")
        self.rows = self.add_variable((), "zeros", name="rows")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.rows.assign_add(tf.cast(tf.shape(y_pred)[0], tf.float32))

    def reset_state(self):
        pass

    def result(self):
        return self.rows


def test_elements_may_be_what_only_the_models_own_step_knows(devices):
    class Siamese(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2, kernel_initializer=keras.initializers.GlorotUniform(1))
            self.tracker = keras.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.tracker]

        def call(self, triplet):
            return tuple(self.dense(part) for part in triplet)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                anchor, near, far = self(data)
                apart = tf.square(anchor - near) - tf.square(anchor - far)
                loss = tf.reduce_mean(tf.maximum(tf.reduce_sum(apart, -1) + 0.5, 0.0))
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

    found = []
    for strategy in strategies(devices):
        with strategy.scope():
            model = Siamese()
            model.compile("sgd")
        parts = tuple(numbers(width=3, seed=i) for i in range(3))
        data = tf.data.Dataset.from_tensor_slices(parts).batch(4)
        found.append(tfdist.Trainer(model).fit(data, verbose=0).history["loss"])
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert found[2] == pytest.approx(found[0], rel=1e-6)


def test_gradients_may_be_accumulated_without_a_strategy():
    losses = []
    for batch, steps in ((4, 2), (8, 1)):
        model = linear()
        trainer = tfdist.Trainer(model, accumulate_steps=steps)
        trainer.fit(numbers(), numbers(width=1), batch_size=batch, shuffle=False, verbose=0)
        losses.append(model.get_weights()[0])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def sparse_output():
    class Sparse(layers.Layer):
        def call(self, x):
            return tf.sparse.from_dense(x)

    i = keras.Input((2,))
    return keras.Model(i, Sparse()(i))


@pytest.mark.parametrize(
    ("make", "act", "said"),
    [
        (
            linear,
            lambda t: t.fit(tf.sparse.from_dense(numbers()), numbers(width=1), verbose=0),
            "data: a sparse or ragged tensor is given",
        ),
        (
            lambda: keras.Sequential(
                [keras.Input((2,), batch_size=8), layers.Reshape((2,)), Fixed()]
            ),
            lambda t: t.fit(numbers(), numbers(width=2), verbose=0),
            "made for batches of 8 rows",
        ),
    ],
)
def test_what_replicas_cannot_take_is_one_line(devices, make, act, said):
    with tfdist.mirrored_strategy(devices[:2]).scope():
        model = make()
        if not model.compiled:
            model.compile("sgd", "mse")
    with pytest.raises(ConfigError, match=said) as caught:
        act(tfdist.Trainer(model))
    assert "\n" not in str(caught.value)


class Fixed(layers.Layer):
    def call(self, x):
        return tf.reshape(x, (8, 2))


def test_a_sparse_output_is_refused(devices):
    with tfdist.mirrored_strategy(devices[:2]).scope():
        model = sparse_output()
    with pytest.raises(ConfigError, match="predict: an output is a SparseTensor"):
        tfdist.Trainer(model).predict(np.eye(2, dtype="float32"), verbose=0)
