"""On one device `Trainer` does what plain Keras does, and resumes to the bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.selected import some

X = np.random.default_rng(0).normal(size=(22, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(22, 1)).astype("float32")


def make(**compiled):
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    # Not Adam: where a generator ends, Keras counts a step that it could not make.
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"], **compiled)
    return model


def reshuffled():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(22, seed=5).batch(4)


def endless():
    return reshuffled().repeat()


def generator():
    for at in range(0, 20, 4):
        yield X[at : at + 4], Y[at : at + 4]


def py_dataset():
    import keras

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return X[index * 4 : index * 4 + 4], Y[index * 4 : index * 4 + 4]

    return Batches()


def arrays():
    return X, Y


DATA = {
    "reshuffled": (reshuffled, {}),
    "in_parts": (reshuffled, {"steps_per_epoch": 4}),
    "endless": (endless, {"steps_per_epoch": 4}),
    "generator": (generator, {}),
    "generator_in_parts": (generator, {"steps_per_epoch": 2}),
    "py_dataset": (py_dataset, {"shuffle": False}),
    "arrays": (arrays, {"shuffle": False, "batch_size": 4}),
    "arrays_in_parts": (arrays, {"shuffle": False, "batch_size": 4, "steps_per_epoch": 4}),
}


def arguments(name):
    data, more = DATA[name]
    made = data()
    parts = {"x": made[0], "y": made[1]} if isinstance(made, tuple) else {"x": made}
    return parts | more | {"epochs": 4, "verbose": 0}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "steps"),
    some(itertools.product(DATA, [1, 3]), [("in_parts", 3), ("generator", 1), ("py_dataset", 3)]),
)
def test_epochs_are_those_of_keras(devices, name, steps):
    import tfdist

    if (steps, name) == (3, "generator_in_parts"):
        pytest.skip("Keras takes a call that finds no data for an epoch whose loss is 0.0")
    model, reference = make(steps_per_execution=steps), make(steps_per_execution=steps)
    expected = reference.fit(**arguments(name)).history
    history = tfdist.Trainer(model).fit(**arguments(name)).history
    assert history == expected
    assert all(map(np.array_equal, model.get_weights(), reference.get_weights()))


class Stop(Exception):
    pass


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "after"),
    some(
        itertools.product(
            ["reshuffled", "in_parts", "py_dataset", "arrays", "arrays_in_parts"], [2, 8]
        ),
        [("reshuffled", 8), ("py_dataset", 2), ("arrays_in_parts", 8)],
    ),
)
def test_training_goes_on_where_it_was(devices, tmp_path, name, after):
    import keras

    import tfdist

    given = arguments(name) | {"shuffle": True}
    reference = make()
    straight = tfdist.Trainer(reference).fit(**given).history

    class Break(keras.callbacks.Callback):
        count = 0

        def on_train_batch_end(self, batch, logs=None):
            self.count += 1
            if self.count == after + 1:
                raise Stop

    saving = {"checkpoint_dir": tmp_path, "checkpoint_steps": 1}
    with pytest.raises(Stop):
        tfdist.Trainer(make(), **saving).fit(
            **arguments(name) | {"shuffle": True, "callbacks": Break()}
        )
    model = make()
    history = tfdist.Trainer(model, **saving).fit(**arguments(name) | {"shuffle": True}).history
    assert all(map(np.array_equal, model.get_weights(), reference.get_weights()))
    assert history == {key: values[-len(history[key]) :] for key, values in straight.items()}


def test_no_row_is_run_to_build(devices, tmp_path):
    import keras

    import tfdist

    class Counts(keras.layers.Layer):
        def build(self, shape):
            self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x):
            self.count.assign_add(1.0)
            return x

    for _ in range(2):  # The second time it goes on from the checkpoint of the first.
        model = keras.Sequential([Counts(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        trainer = tfdist.Trainer(model, checkpoint_dir=tmp_path)
        trainer.fit(X, Y, batch_size=11, epochs=1, verbose=0)
        assert float(model.layers[0].count.numpy()) == 2.0
