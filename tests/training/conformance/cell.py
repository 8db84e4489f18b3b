"""Runs one feature in one setting and writes down all that came out."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.training.conformance.setting import Feature, Setting

Values = dict[str, np.ndarray]


def run_cell(feature: Feature, setting: Setting, strategy: tf.distribute.Strategy | None) -> None:
    """Runs the feature; writes its values to `folder/values.npz`, an error to `error.json`.

    Values computed before an error are kept.
    """
    folder = setting.folder
    folder.mkdir(parents=True, exist_ok=True)
    values: Values = {}
    error = None
    try:
        _run(feature, setting, strategy, values)
    except Exception as caught:
        error = {
            "type": type(caught).__name__,
            "message": str(caught),
            "traceback": traceback.format_exc()[-6000:],
        }
    finally:
        keras.config.set_dtype_policy("float32")
    np.savez(folder / "values.npz", **values)
    # The error file comes last: where it is, the cell is done.
    partial = folder / "error.partial"
    partial.write_text(json.dumps(error))
    partial.rename(folder / "error.json")


def read_cell(folder: Path) -> tuple[Values, dict[str, str] | None]:
    """Values and error of a cell.

    Raises:
        FileNotFoundError: The cell did not finish.
    """
    error = json.loads((folder / "error.json").read_text())
    with np.load(folder / "values.npz") as stored:
        return {name: stored[name] for name in stored.files}, error


def _run(
    feature: Feature, setting: Setting, strategy: tf.distribute.Strategy | None, values: Values
) -> None:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        recipe = feature.make(setting)
    model = recipe.model
    runner: Any = model
    if setting.trainer:
        import tfdist

        runner = tfdist.Trainer(model, **recipe.trainer)
    history = runner.fit(**({"verbose": 0} | recipe.fit))
    for name, numbers in history.history.items():
        values[f"history/{name}"] = np.asarray(numbers, np.float64)
    values |= weights_of(model)
    if recipe.evaluate is not None:
        results = runner.evaluate(**recipe.evaluate, verbose=0, return_dict=True)
        values |= {f"evaluate/{k}": np.asarray(v, np.float64) for k, v in results.items()}
    if recipe.predict is not None:
        for i, output in enumerate(keras.tree.flatten(runner.predict(**recipe.predict, verbose=0))):
            values[f"predict/{i}"] = plain(output)
    if recipe.after is not None:
        values |= {f"after/{k}": plain(v) for k, v in recipe.after(runner).items()}


def weights_of(model: keras.Model) -> Values:
    """The model's weights, and its optimizer's, by number and name."""
    values = {}
    for i, variable in enumerate(model.weights):
        values[f"weight/{i}/{variable.name}"] = plain(variable.numpy())
    for i, variable in enumerate(model.optimizer.variables):
        values[f"optimizer/{i}"] = plain(variable.numpy())
    return values


def plain(value: Any) -> np.ndarray:
    """An array that a file can hold: bfloat16 becomes float32."""
    array = np.asarray(value)
    return array.astype("float32") if array.dtype.name in ("bfloat16", "float16") else array
