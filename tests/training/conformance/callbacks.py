"""Features: callbacks, results, files, determinism."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tests.training.conformance.setting import (
    BATCH,
    ROWS,
    Recipe,
    Setting,
    batches,
    classifier,
    classify,
    crossentropy,
    feature,
    inputs,
    labels,
    sgd,
)

GROUP = "Callbacks"
FILES = "Results and files"


def _classifier(rate: Any = 0.05) -> keras.Model:
    model = classifier()
    model.compile(sgd(rate), crossentropy(), metrics=["accuracy"])
    return model


def _few(*callbacks: Any, rate: Any = 0.05, epochs: int = 3) -> Recipe:
    recipe = classify(_classifier(rate), callbacks=list(callbacks))
    recipe.fit["epochs"] = epochs
    recipe.evaluate = recipe.predict = None
    return recipe


@feature("EarlyStopping(restore_best_weights)", GROUP)
def early_stopping(setting: Setting) -> Recipe:
    stop = keras.callbacks.EarlyStopping(
        "val_loss", patience=1, restore_best_weights=True, min_delta=10.0
    )
    recipe = _few(stop, epochs=6)
    recipe.after = lambda runner: {"stopped": stop.stopped_epoch, "best": stop.best}
    return recipe


@feature("ReduceLROnPlateau", GROUP)
def reduce_rate(setting: Setting) -> Recipe:
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.5, min_delta=10.0)
    recipe = _few(plateau, epochs=4)
    recipe.after = lambda runner: {"rate": recipe.model.optimizer.learning_rate.numpy()}
    return recipe


@feature("LearningRateScheduler", GROUP)
def rate_scheduler(setting: Setting) -> Recipe:
    return _few(keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 / (epoch + 1)))


@feature("ModelCheckpoint, CSVLogger", GROUP)
def file_writers(setting: Setting) -> Recipe:
    folder = setting.folder
    recipe = _few(
        keras.callbacks.ModelCheckpoint(folder / "{epoch}.keras", monitor="val_loss"),
        keras.callbacks.ModelCheckpoint(folder / "best.weights.h5", save_weights_only=True),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        epochs=2,
    )

    def read(runner: Any) -> dict[str, Any]:
        written = sorted(path.name for path in folder.glob("*.*") if path.suffix != ".npz")
        if not setting.is_chief:
            assert not written, written
            return {}
        log = np.loadtxt(folder / "log.csv", delimiter=",", skiprows=1)
        saved = keras.models.load_model(folder / "1.keras", compile=False)
        return {
            "files": np.array(written),
            "log": log,
            **{f"saved/{i}": w for i, w in enumerate(saved.get_weights())},
        }

    recipe.after = read
    return recipe


@feature("TensorBoard", GROUP)
def tensorboard(setting: Setting) -> Recipe:
    folder = setting.folder / "board"
    recipe = _few(keras.callbacks.TensorBoard(folder, histogram_freq=0), epochs=2)

    def count(runner: Any) -> dict[str, Any]:
        kinds = sorted({path.parent.name for path in folder.rglob("events*")})
        assert setting.is_chief == bool(kinds), kinds
        return {"kinds": np.array(kinds)} if setting.is_chief else {}

    recipe.after = count
    return recipe


@feature("TerminateOnNaN", GROUP)
def terminate_on_nan(setting: Setting) -> Recipe:
    # Not in the input: the network's ReLU makes zero of it.
    weights = np.ones(ROWS, np.float32)
    weights[3 * BATCH] = np.nan
    recipe = _few(keras.callbacks.TerminateOnNaN(), epochs=4)
    recipe.fit |= {"x": batches(inputs(), labels(), weights), "validation_data": None}
    recipe.after = lambda runner: _how_it_stopped(recipe.model)
    return recipe


def _how_it_stopped(model: keras.Model) -> dict[str, Any]:
    assert model.stop_training
    return {"steps": model.optimizer.iterations.numpy()}


class Diary(keras.callbacks.Callback):
    """Writes down what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.calls.append(f"batch {batch}")
        self.losses.append(logs["loss"])
        if len(self.calls) == 2:
            self.model.optimizer.learning_rate = 0.01

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.calls.append(f"test {batch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(f"epoch {epoch} {sorted(logs)}")
        if epoch == 1:
            self.model.stop_training = True


@feature("LambdaCallback and the user's own: logs of every batch, a new rate, a stop", GROUP)
def own_callbacks(setting: Setting) -> Recipe:
    diary = Diary()
    begun: list[int] = []
    recipe = _few(
        diary,
        keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch)),
    )
    recipe.after = lambda runner: {
        "calls": np.array(diary.calls),
        "losses": diary.losses,
        "begun": begun,
    }
    return recipe


class StopsAfterABatch(keras.callbacks.Callback):
    """Stops training after the third batch of the second epoch."""

    epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == (1, 2):
            self.model.stop_training = True


class StopsBeforeABatch(keras.callbacks.Callback):
    """Stops training before the first batch of the second epoch, which Keras then still makes."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.stop_training = True


def _for_the_chief(setting: Setting, callback: keras.callbacks.Callback) -> Recipe:
    recipe = _few(*([callback] if setting.is_chief else []))
    recipe.after = lambda runner: _how_it_stopped(recipe.model)
    return recipe


@feature("stop_training after a batch, set on one worker only", GROUP)
def stop_after_a_batch(setting: Setting) -> Recipe:
    return _for_the_chief(setting, StopsAfterABatch())


@feature("stop_training before a batch, set on one worker only", GROUP)
def stop_before_a_batch(setting: Setting) -> Recipe:
    return _for_the_chief(setting, StopsBeforeABatch())


@feature("SwapEMAWeights", GROUP)
def swap_ema(setting: Setting) -> Recipe:
    recipe = _few(keras.callbacks.SwapEMAWeights(swap_on_epoch=True), epochs=2)
    optimizer = sgd(use_ema=True, ema_momentum=0.7)
    recipe.model.compile(optimizer, crossentropy(), metrics=["accuracy"])
    return recipe


@feature("evaluate, for any number of rows", FILES)
def evaluate_sizes(setting: Setting) -> Recipe:
    recipe = _few(epochs=1)

    def sizes(runner: Any) -> dict[str, Any]:
        found = {}
        for rows in (1, 2, 13, 14):
            found[str(rows)] = runner.evaluate(inputs(rows), labels(rows), batch_size=5, verbose=0)
        found["steps"] = runner.evaluate(batches(inputs(), labels()).repeat(), steps=4, verbose=0)
        return found

    recipe.after = sizes
    return recipe


@feature("predict, in order, for any number of rows", FILES)
def predict_sizes(setting: Setting) -> Recipe:
    recipe = _few(epochs=1)

    def sizes(runner: Any) -> dict[str, Any]:
        found = {}
        for rows in (1, 2, 13, 14):
            found[str(rows)] = runner.predict(inputs(rows), batch_size=5, verbose=0)
        data = batches(inputs(), labels(), batch=4)
        found["dataset"] = runner.predict(data, verbose=0)
        found["unknown"] = runner.predict(data.filter(lambda x, y: True), verbose=0)
        found["steps"] = runner.predict(data.repeat(), steps=3, verbose=0)
        return found

    recipe.after = sizes
    return recipe


@feature(
    "save to .keras and .weights.h5, export; loaded in one plain process",
    FILES,
    reference="slices",
)
def files(setting: Setting) -> Recipe:
    model = classifier(setting.normalization(momentum=0.5))
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    recipe = classify(model, rows=14, predicts=True)
    recipe.evaluate = None

    def save(runner: Any) -> dict[str, Any]:
        if setting.is_chief and not setting.reference:
            model.save(setting.folder / "model.keras")
            model.save_weights(setting.folder / "model.weights.h5")
            model.export(setting.folder / "exported", verbose=False)
        return {}

    recipe.after = save
    return recipe


@feature("Two runs with one seed give the same bits", FILES, only=("after/same",))
def determinism(setting: Setting) -> Recipe:
    recipe = _seeded(setting)

    def again(runner: Any) -> dict[str, Any]:
        import tfdist

        first = [np.array(w) for w in recipe.model.get_weights()]
        keras.utils.set_random_seed(7)
        with recipe.model.distribute_strategy.scope() if setting.trainer else _nothing():
            second = _seeded(setting)
        other = tfdist.Trainer(second.model) if setting.trainer else second.model
        other.fit(**second.fit, verbose=0)
        pairs = zip(first, second.model.get_weights(), strict=True)
        return {"same": all(np.array_equal(a, b) for a, b in pairs)}

    recipe.after = again
    return recipe


def _seeded(setting: Setting) -> Recipe:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu"),
            setting.dropout(0.3, seed=5),
            keras.layers.Dense(3),
        ]
    )
    model.compile(keras.optimizers.Adam(0.02), crossentropy())
    return Recipe(
        model,
        fit={"x": inputs(), "y": labels(), "batch_size": BATCH, "epochs": 2},
    )


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


@feature("A new process goes on from a checkpoint", FILES, reference="slices")
def resume(setting: Setting) -> Recipe:
    def make() -> Recipe:
        model = classifier(setting.normalization(momentum=0.5), setting.dropout(0.3, seed=5))
        model.compile(sgd(), crossentropy(), metrics=["accuracy"])
        recipe = classify(model)
        recipe.evaluate = None
        recipe.fit["epochs"] = 1
        if setting.trainer:
            recipe.trainer = {"checkpoint_dir": setting.folder / "checkpoints"}
        return recipe

    first = make()

    def go_on(runner: Any) -> dict[str, Any]:
        import tfdist

        if not setting.trainer:
            history = runner.fit(**first.fit | {"initial_epoch": 1, "epochs": 3}, verbose=0)
            return _state(first.model, history)
        with first.model.distribute_strategy.scope():
            second = make()
        trainer = tfdist.Trainer(second.model, **second.trainer)
        history = trainer.fit(**second.fit | {"epochs": 3}, verbose=0)
        assert history.epoch == [0, 1, 2], "whole"
        history.history = {name: numbers[1:] for name, numbers in history.history.items()}
        return _state(second.model, history)

    first.after = go_on
    return first


def _state(model: keras.Model, history: keras.callbacks.History) -> dict[str, Any]:
    variables = (*model.weights, *model.optimizer.variables)
    values = {str(number): variable.numpy() for number, variable in enumerate(variables)}
    return values | {name: np.asarray(numbers) for name, numbers in history.history.items()}
