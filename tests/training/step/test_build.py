"""All variables are made before the first step, from one row, and none has learned from it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

import tfdist
from tests.training.step.replicas import X, Y, dense, make_pair, number, tensors
from tfdist.training.step.build import build, build_optimizers


class Lazy(keras.Model):
    """Makes its variables when called."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = keras.layers.Dense(4), keras.layers.Dense(1)

    def call(self, x):
        type(self).calls += 1
        return self.last(self.first(x))


@pytest.fixture
def mirrored(devices):
    return tfdist.mirrored_strategy(devices[:2])


@pytest.mark.parametrize("make", [Lazy, dense])
def test_weights_optimizer_and_metrics_are_made_under_the_strategy_and_hold_nothing(mirrored, make):
    with mirrored.scope():
        model = make()
        model.compile("adam", "mse", metrics=["mae"], weighted_metrics=["mse"])
    data = tensors((X, Y, np.ones(7, "float32")))
    build(model, mirrored, data)
    assert model.built
    assert model.optimizer.built
    assert len(model.optimizer.variables) == 2 + 2 * len(model.trainable_variables)
    made = [*model.trainable_variables, *model.optimizer.variables]
    assert all(mirrored.extended.variable_created_in_scope(v.value) for v in made)
    names = {metric.name for metric in model.metrics[1].metrics}
    assert names == {"mae", "mse"}
    assert len(model.metrics_variables) == 6  # total and count of the loss, mae and mse
    assert not any(v.numpy().any() for v in model.metrics_variables)
    weights = model.get_weights()
    build(model, mirrored, data)
    assert all(np.array_equal(a, b) for a, b in zip(weights, model.get_weights(), strict=True))
    assert len(model.metrics_variables) == 6


def test_data_without_targets_is_enough_to_predict(mirrored):
    with mirrored.scope():
        model = Lazy()
    build(model, mirrored, tf.constant(X))
    assert [tuple(v.shape) for v in model.trainable_variables] == [(3, 4), (4,), (4, 1), (1,)]
    Lazy.calls = 0
    build(model, mirrored, tf.constant(X))
    assert Lazy.calls == 0  # Nothing is left to be made.


def test_one_row_is_used(mirrored):
    class Seen(Lazy):
        def call(self, x):
            seen.append(tuple(x.shape))
            return super().call(x)

    seen: list[tuple[int, ...]] = []
    with mirrored.scope():
        model = Seen()
    build(model, mirrored, tf.constant(X))
    assert set(seen) <= {(1, 3), (None, 3)}


def test_a_model_whose_steps_do_without_call_and_loss_is_not_called(mirrored):
    class Steps(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.part = keras.layers.Dense(1)
            self.part.build((None, 3))
            self.second = keras.optimizers.SGD()

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = keras.ops.mean((self.part(x) - y) ** 2)
            variables = self.part.trainable_variables
            gradients = tape.gradient(loss, [v.value for v in variables])
            self.second.apply(gradients, variables)
            return {"loss": loss}

    with mirrored.scope():
        model = Steps()
        model.compile("sgd")
    build(model, mirrored, tensors((X, Y)))
    assert model.optimizer.built
    assert [tuple(v.shape) for v in model.second._trainable_variables] == [(3, 1), (1,)]


class Pairs(keras.Model):
    """Its own step calls it with something that is not x of (x, y)."""

    def __init__(self) -> None:
        super().__init__()
        inputs = [keras.Input((3,), name=name) for name in ("one", "other")]
        dense = keras.layers.Dense(1)
        self.network = keras.Model(inputs, keras.layers.subtract([dense(i) for i in inputs]))

    def call(self, both):
        return self.network(both)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.network(data) ** 2)
        weights = self.network.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def test_a_step_that_calls_a_network_on_all_of_its_data(mirrored):
    with mirrored.scope():
        model = Pairs()
        model.compile("sgd")
    before = model.network.get_weights()
    history = tfdist.Trainer(model).fit(
        tf.data.Dataset.from_tensor_slices((X, 2 * X)).batch(4), verbose=0
    )
    assert np.isfinite(history.history["loss"]).all()
    assert not np.array_equal(before[0], model.network.get_weights()[0])


class Student(keras.Model):
    """Hands the compiled metrics what only its own step knows; it compiles no loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = dense()

    def train_step(self, data):
        (x, _), (_, y) = data
        with tf.GradientTape() as tape:
            output = self.inner(x)
            loss = tf.reduce_mean((output - y) ** 2)
        weights = self.inner.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self._compile_metrics.update_state(y, output)
        return self.get_metrics_result()


def test_compiled_metrics_that_only_the_step_can_make(mirrored):
    with mirrored.scope():
        model = Student()
        model.compile("sgd", metrics=["mae"])
    error = np.abs(model.inner(X).numpy() - Y).mean()
    data = tf.data.Dataset.from_tensor_slices(((X, Y), (X, Y))).batch(len(X))
    history = tfdist.Trainer(model).fit(data, verbose=0)
    assert history.history["mae"] == pytest.approx([error], rel=1e-5)


class Regularized(keras.Model):
    """Has a regularizer of a weight that is made when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.last = keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.1))

    def call(self, x):
        return self.last(x)


def test_a_regularizer_of_a_weight_that_is_made_here(mirrored):
    with mirrored.scope():
        model = Regularized()
        model.compile("sgd", "mse")
    build(model, mirrored, tensors((X, Y)))
    assert len(model.trainable_variables) == 2


class Graph(keras.Model):
    """Is called on what it holds; x of (x, y) has the numbers of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = tf.constant(X)
        self.last = keras.layers.Dense(1)

    def call(self, inputs):
        rows, factor = inputs
        return factor * self.last(rows)

    def train_step(self, data):
        numbers, y = data
        with tf.GradientTape() as tape:
            output = tf.gather(self([self.rows, tf.constant(2.0)]), numbers)
            loss = self.compute_loss(y=y, y_pred=output)
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return self.compute_metrics(numbers, y, output)


def test_a_model_that_its_step_calls_on_something_else_than_x(mirrored):
    with mirrored.scope():
        model = Graph()
        model.compile("sgd", "mse", metrics=["mae"])
    data = (np.arange(len(X)), Y)
    build(model, mirrored, tensors(data))
    before = model.get_weights()
    assert all(mirrored.extended.variable_created_in_scope(v.value) for v in model.weights)
    error = np.abs(2 * (X @ before[0] + before[1]) - Y).mean()
    history = tfdist.Trainer(model).fit(*data, batch_size=len(X), verbose=0)
    assert history.history["mae"] == pytest.approx([error], rel=1e-5)
    assert not np.array_equal(before[0], model.get_weights()[0])


class Failing(Graph):
    def call(self, inputs):
        raise ZeroDivisionError("in call")


def test_a_call_that_fails_tells_its_own_error(mirrored):
    with mirrored.scope():
        model = Failing()
        model.compile("sgd", "mse")
    with pytest.raises(ZeroDivisionError, match="in call"):
        build(model, mirrored, tensors((X, Y)))


class TrainedLayer(TensorFlowTrainer, keras.layers.Dense):
    """A layer with `fit`, which has no `layers`, as Keras' own tests have them."""

    def __init__(self) -> None:
        keras.layers.Dense.__init__(self, 1)
        TensorFlowTrainer.__init__(self)


def test_a_layer_that_is_a_trainer_and_has_been_called(mirrored):
    with mirrored.scope():
        model = TrainedLayer()
        model(X)
        model.compile("adam", "mse")
    build(model, mirrored, tensors((X, Y)))
    assert model.optimizer.built


def test_optimizers_are_built_with_the_weights_the_step_hands_them(mirrored):
    with mirrored.scope():
        model = make_pair()
    before = model.get_weights()
    assert not model.second.built
    build_optimizers(model, mirrored, (tf.constant(X[:1]), tf.constant(Y[:1])))
    shapes = [tuple(v.shape) for v in model.tail.trainable_variables]
    assert [tuple(v.shape) for v in model.second._momentums] == shapes
    assert all(mirrored.extended.variable_created_in_scope(v.value) for v in model.second.variables)
    assert number(model.second.iterations) == 0
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
