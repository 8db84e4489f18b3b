"""Models of Keras' parts alone need no rehearsal: they treat every row by itself."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L
from keras import ops

from tests.selected import some
from tfdist.training.rehearsal.known import is_known
from tfdist.training.rehearsal.rehearsal import rehearse
from tfdist.training.step.replica import TRAIN

IMAGES, STEPS, ROWS = (8, 8, 3), (6, 4), (4,)


def model_of(layer, shape=ROWS, loss="mse", metrics=()):
    parts = [keras.Input(shape), layer, L.Flatten(), L.Dense(1)]
    model = keras.Sequential(parts)
    model.compile("sgd", loss, metrics=list(metrics))
    return model


# Kinds of layers, each with the shape of a row that it takes.
LAYERS = {
    **{f"{name} of images": (name, IMAGES, arguments) for name, arguments in {
        "Conv2D": {"filters": 2, "kernel_size": 3},
        "Conv2DTranspose": {"filters": 2, "kernel_size": 3},
        "DepthwiseConv2D": {"kernel_size": 3},
        "SeparableConv2D": {"filters": 2, "kernel_size": 3},
        "MaxPooling2D": {},
        "AveragePooling2D": {"pool_size": 2},
        "BatchNormalization": {},
        "GroupNormalization": {"groups": 3},
        "SpatialDropout2D": {"rate": 0.5},
        "Resizing": {"height": 4, "width": 4},
        "UpSampling2D": {},
        "ZeroPadding2D": {},
        "Rescaling": {"scale": 2.0},
    }.items()},
    **{f"{name} of steps": (name, STEPS, arguments) for name, arguments in {
        "Conv1D": {"filters": 2, "kernel_size": 3},
        "LSTM": {"units": 3},
        "GRU": {"units": 3, "return_sequences": True},
        "SimpleRNN": {"units": 3},
        "GlobalAveragePooling1D": {},
        "LayerNormalization": {},
        "Permute": {"dims": (2, 1)},
        "SpatialDropout1D": {"rate": 0.5},
    }.items()},
    **{name: (name, ROWS, arguments) for name, arguments in {
        "Dense": {"units": 3, "activation": "gelu", "kernel_regularizer": "l2"},
        "ActivityRegularization": {"l2": 0.1},
        "UnitNormalization": {},
        "RMSNormalization": {},
        "Softmax": {},
        "PReLU": {},
        "Dropout": {"rate": 0.5},
        "GaussianNoise": {"stddev": 0.5},
        "GaussianDropout": {"rate": 0.5},
        "AlphaDropout": {"rate": 0.5},
        "RepeatVector": {"n": 2},
        "EinsumDense": {"equation": "ab,bc->ac", "output_shape": 3},
    }.items()},
}  # fmt: skip


@pytest.mark.parametrize(
    "name", some([(name,) for name in LAYERS], [("LSTM of steps",), ("Dropout",)])
)
def test_it_is_known_and_treats_each_row_by_itself(name):
    kind, shape, arguments = LAYERS[name]
    keras.utils.set_random_seed(0)
    model = model_of(getattr(L, kind)(**arguments), shape)
    assert is_known(model)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(8, *shape)), random.normal(size=(8, 1))
    data = (tf.constant(x, tf.float32), tf.constant(y, tf.float32))
    model.optimizer.build(model.trainable_variables)
    model.compute_loss(*data, model(data[0]))
    finding = rehearse(
        model,
        data,
        TRAIN,
        updates_within=False,
        in_one_process=True,
    )
    assert (finding.differs, finding.error) == ("", "")


def own(*_):
    return ops.zeros(())


class Own(L.Layer):
    def call(self, x):
        return x


class OwnModel(keras.Sequential):
    def compute_loss(self, *args, **named):
        return super().compute_loss(*args, **named)


def with_operation():
    inputs = keras.Input(ROWS)
    return keras.Model(inputs, inputs - ops.mean(inputs, 0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: model_of(Own()),
        lambda: model_of(L.Lambda(lambda x: x)),
        lambda: model_of(L.Softmax(axis=0)),
        lambda: model_of(L.UnitNormalization(axis=(0, 1))),
        lambda: model_of(L.Dense(2, activation=lambda x: x)),
        lambda: model_of(L.Dense(2, activity_regularizer=own)),
        lambda: model_of(keras.Sequential([Own()])),
        lambda: model_of(L.Dense(2), metrics=[own]),
        lambda: OwnModel([keras.Input(ROWS), L.Dense(1)]),
        with_operation,
    ],
    ids=[
        *("layer", "lambda", "axis", "axes", "activation", "regularizer", "inner", "metric"),
        *("method", "operation"),
    ],
)
def test_what_is_the_users_is_not_known(make):
    model = make()
    if model.compiled:
        model.compute_metrics(np.ones((2, 4)), np.ones((2, 1)), model(np.ones((2, 4), "float32")))
    assert not is_known(model)


def test_a_loss_of_the_users_is_not_known():
    model = model_of(L.Dense(2), loss=lambda y, p: ops.mean(ops.square(y - p), -1))
    x = np.ones((2, 4), "float32")
    model.compute_loss(x, x[:, :1], model(x))
    assert not is_known(model)
