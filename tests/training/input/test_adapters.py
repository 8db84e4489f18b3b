"""A dataset is read as often as Keras reads it, so that what reshuffles gives Keras' batches."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters import get_data_adapter

import tfdist
from tfdist.training.input.adapters import DatasetBatches


def shuffled(rows=10, batch=4, known=True):
    data = tf.data.Dataset.range(rows).shuffle(rows, seed=3).batch(batch)
    return data if known else data.filter(lambda x: True)


def batches_of(dataset):
    return DatasetBatches(get_data_adapter(dataset))


def read(dataset):
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("known", [True, False])
def test_the_first_batch_is_read_once(known):
    orders = shuffled(known=known)
    want = [read(orders) for _ in range(3)]
    readings = batches_of(shuffled(known=known))
    assert read(readings.first()) == want[0][:1]
    assert read(readings.first()) == want[0][:1]
    first = readings.epoch(0, 0)
    assert int(first.cardinality()) == (3 if known else tf.data.UNKNOWN_CARDINALITY)
    assert first.element_spec == orders.element_spec
    assert read(first) == want[0]
    readings.read_again(1 if known else 0)
    assert read(readings.epoch(1, 0)) == want[2 if known else 1]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("peeks", [True, False])
def test_a_resumed_epoch_is_that_of_the_run_it_resumes(known, peeks):
    undisturbed = batches_of(shuffled(known=known))
    epochs = []
    for number in range(3):
        epochs.append(read(undisturbed.epoch(number, 0)))
        undisturbed.read_again(1 if known else 0)
    for number in range(3):
        resumed = batches_of(shuffled(known=known))
        if peeks:
            resumed.first()
        resumed.pass_over(number * (2 if known else 1))
        assert read(resumed.epoch(number, 1)) == epochs[number][1:]


def test_data_without_a_batch_and_without_an_end():
    empty = batches_of(shuffled().take(0))
    assert read(empty.first()) == [] and read(empty.epoch(0, 0)) == []
    endless = batches_of(shuffled().repeat())
    endless.first()
    dataset = endless.epoch(0, 0)
    assert int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    assert len(read(dataset.take(7))) == 7


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("steps", [None, 5])
@pytest.mark.parametrize("known", [True, False])
def test_replicas_see_keras_batches(devices, steps, known):
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")

    def losses(fit_of, strategy):
        with strategy.scope():
            model = keras.Sequential(
                [keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")]
            )
            model.compile(keras.optimizers.SGD(0.1), "mse")
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(40, seed=1).batch(8)
        data = data if known else data.filter(lambda x, y: True)
        history = fit_of(model)(data, epochs=4, steps_per_epoch=steps, shuffle=False, verbose=0)
        return history.history["loss"]

    if steps and not known:
        pytest.skip("Keras stops where data of unknown length ends")
    want = losses(lambda model: model.fit, tf.distribute.get_strategy())
    for make in (tfdist.mirrored_strategy, tfdist.central_storage_strategy):
        found = losses(lambda model: tfdist.Trainer(model).fit, make(devices[:2]))
        assert found == pytest.approx(want, rel=1e-5)
