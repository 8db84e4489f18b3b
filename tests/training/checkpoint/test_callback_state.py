"""Callbacks keep what they remembered, whoever made them and on whichever worker."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest

from tfdist.training.checkpoint.callback_state import collect, restore

LOSSES = [1.0, 0.5, 0.7, 0.6, 0.8, 0.9]


def small_model():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    return model


def run(callback, model, epochs):
    """Has a callback see the ends of epochs; the weights are those of the epoch's number."""
    for epoch in epochs:
        model.set_weights([np.full(w.shape, float(epoch)) for w in model.get_weights()])
        callback.on_epoch_end(epoch, {"val_loss": np.float32(LOSSES[epoch])})


def made(kind, **options):
    callback, model = kind(**options), small_model()
    callback.set_model(model)
    callback.on_train_begin()
    return callback, model


def through_a_file(callbacks, others):
    states, arrays = collect(callbacks)
    restore(others, json.loads(json.dumps(states)), dict(arrays))


@pytest.mark.parametrize("stop", range(1, 5))
def test_early_stopping_stops_at_the_same_epoch_with_the_same_weights(stop):
    options = {"patience": 3, "restore_best_weights": True}
    first, model = made(keras.callbacks.EarlyStopping, **options)
    run(first, model, range(stop))
    second, model = made(keras.callbacks.EarlyStopping, **options)
    through_a_file([first], [second])
    assert isinstance(second.best, float)
    model.stop_training = False
    run(second, model, range(stop, 5))
    assert model.stop_training
    assert second.stopped_epoch == 4
    assert second.best_epoch == 1
    second.on_train_end()
    assert all((weight == 1.0).all() for weight in model.get_weights())


def test_a_plateau_lowers_the_rate_at_the_same_epochs():
    rates = []
    for breaks in ((), (2,), (3, 4), range(1, 6)):
        options = {"factor": 0.5, "patience": 1, "cooldown": 2}
        callback, model = made(keras.callbacks.ReduceLROnPlateau, **options)
        rates.append([])
        for epoch in range(6):
            if epoch in breaks:
                before, rate = callback, model.optimizer.learning_rate.numpy()
                callback, model = made(keras.callbacks.ReduceLROnPlateau, **options)
                model.optimizer.learning_rate = rate  # With the optimizer's variables.
                through_a_file([before], [callback])
            run(callback, model, [epoch])
            rates[-1].append(float(model.optimizer.learning_rate.numpy()))
    assert rates[0] == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    assert rates == [rates[0]] * 4


def test_a_model_checkpoint_overwrites_nothing_better(tmp_path):
    options = {"filepath": tmp_path / "best.weights.h5", "save_best_only": True}
    options |= {"save_weights_only": True, "monitor": "val_loss"}
    first, model = made(keras.callbacks.ModelCheckpoint, **options)
    run(first, model, [1])
    second, model = made(keras.callbacks.ModelCheckpoint, **options)
    through_a_file([first], [second])
    run(second, model, [2])
    model.load_weights(options["filepath"])
    assert all((weight == 1.0).all() for weight in model.get_weights())


class Counter(keras.callbacks.Callback):
    def __init__(self, count=0):
        super().__init__()
        self.count = count

    def get_state(self):
        return {"count": [self.count]}

    def set_state(self, state):
        (self.count,) = state["count"]


class OwnStopping(keras.callbacks.EarlyStopping):
    def get_state(self):
        return "mine"

    def set_state(self, state):
        self.restored = state


def test_a_users_callback_is_saved_and_restored_by_its_own_methods():
    through_a_file([Counter(1), OwnStopping()], [two := Counter(), own := OwnStopping()])
    assert (two.count, own.restored) == (1, "mine")
    assert collect([own])[0] == {"OwnStopping.0": "mine"}


def test_each_of_a_class_gets_its_own_though_a_worker_lacks_those_that_write(tmp_path):
    writer = keras.callbacks.ModelCheckpoint(tmp_path / "x.keras")
    on_chief = [Counter(1), keras.callbacks.History(), writer, Counter(2)]
    here = [Counter(), Counter(), Counter(7), keras.callbacks.EarlyStopping()]
    before = dict(vars(here[3]))
    through_a_file(on_chief, here)
    assert [callback.count for callback in here[:3]] == [1, 2, 7]
    assert vars(here[3]) == before  # Nothing was saved of it.


def test_those_that_remember_nothing_are_left_out():
    states, arrays = collect([keras.callbacks.ProgbarLogger(), keras.callbacks.TerminateOnNaN()])
    assert states == arrays == {}
    stopping, model = made(keras.callbacks.EarlyStopping)
    assert collect([stopping])[1] == {}, "it keeps no weights"
