"""What Keras' own callbacks remember from epoch to epoch, to be saved with a checkpoint.

Callbacks of the user's can take part: one with the methods `get_state()`, which gives what
JSON can hold, and `set_state(state)`, is asked and told in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

_REMEMBERED: dict[type, tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("wait", "best", "best_epoch", "stopped_epoch"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: ("best",),
}


def collect(
    callbacks: Sequence[keras.callbacks.Callback],
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns what the callbacks remember: values by callback, and arrays by name."""
    states: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for key, callback, attributes in _named(callbacks):
        if attributes is None:
            states[key] = callback.get_state()
            continue
        states[key] = {name: _plain(getattr(callback, name, None)) for name in attributes}
        for index, weight in enumerate(getattr(callback, "best_weights", None) or ()):
            arrays[f"callbacks/{key}/best_weights/{index}"] = np.array(weight)
    return states, arrays


def give_back(
    callbacks: Sequence[keras.callbacks.Callback],
    states: dict[str, Any],
    arrays: dict[str, np.ndarray],
) -> None:
    """Makes callbacks remember what `collect` returned; those it does not know stay as they are."""
    for key, callback, attributes in _named(callbacks):
        if key not in states:
            continue
        if attributes is None:
            callback.set_state(states[key])
            continue
        for name, value in states[key].items():
            setattr(callback, name, value)
        prefix = f"callbacks/{key}/best_weights/"
        weights = [array for name, array in arrays.items() if name.startswith(prefix)]
        if weights:
            callback.best_weights = weights


def _named(
    callbacks: Sequence[keras.callbacks.Callback],
) -> Iterator[tuple[str, Any, tuple[str, ...] | None]]:
    """Callbacks that remember something: a key, the callback, its attributes if it is Keras' own.

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
    return value.item() if isinstance(value, np.generic | np.ndarray) else value
