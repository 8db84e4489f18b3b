"""Saves and restores the state that Keras' own callbacks keep from epoch to epoch.

A user's callback can take part with two methods: `get_state()`, which returns what JSON can
hold, and `set_state(state)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

# The names of their arrays begin so.
PREFIX = "callbacks/"

_REMEMBERED: dict[type, tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("wait", "best", "best_epoch", "stopped_epoch"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: ("best",),
    keras.callbacks.History: ("history", "epoch"),
}


def collect(
    callbacks: Sequence[keras.callbacks.Callback],
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the state of the callbacks: values by callback, and arrays by name."""
    states: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for key, callback, attributes in _named(callbacks):
        if attributes is None:
            states[key] = callback.get_state()
            continue
        states[key] = {name: _plain(getattr(callback, name, None)) for name in attributes}
        for index, weight in enumerate(getattr(callback, "best_weights", None) or ()):
            arrays[f"{PREFIX}{key}/best_weights/{index}"] = np.asarray(weight)
    return states, arrays


def restore(
    callbacks: Sequence[keras.callbacks.Callback],
    states: dict[str, Any],
    arrays: dict[str, np.ndarray],
) -> None:
    """Restores the state that `collect` returned; callbacks without any stay as they are."""
    for key, callback, attributes in _named(callbacks):
        if key not in states:
            continue
        if attributes is None:
            callback.set_state(states[key])
            continue
        for name, value in states[key].items():
            setattr(callback, name, value)
        prefix = f"{PREFIX}{key}/best_weights/"
        weights = [array for name, array in arrays.items() if name.startswith(prefix)]
        if weights:
            callback.best_weights = weights


def _named(
    callbacks: Sequence[keras.callbacks.Callback],
) -> Iterator[tuple[str, Any, tuple[str, ...] | None]]:
    """Yields callbacks with state: a key, the callback, its attributes if it is Keras' own.

    The key counts callbacks of a class, as workers that write no files lack some classes.
    """
    counts: dict[str, int] = {}
    for callback in callbacks:
        attributes = next((a for c, a in _REMEMBERED.items() if isinstance(callback, c)), None)
        own = all(hasattr(callback, method) for method in ("get_state", "set_state"))
        if not own and attributes is None:
            continue
        name = type(callback).__name__
        counts[name] = counts.get(name, -1) + 1
        yield f"{name}.{counts[name]}", callback, None if own else attributes


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic | np.ndarray) else value
