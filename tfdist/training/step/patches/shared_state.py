"""Separates the Python state of a model for replicas that are threads of one process.

The replicas of MirroredStrategy are traced in turn: where one waits for the others, in a
collective, the next one runs the same Python code from its beginning. The state that `call` keeps
on its layer (a tensor on self, a list it appends to, Keras' own list of losses) would then be
another replica's. So each replica begins with the state from before the step, and its own state is
restored after each collective.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_internals import note_changed_dict, wrapped_dict, wrapped_elements

# Types without state of a step: the values of variables are in the step's scope.
_CLOSED = (
    str,
    bytes,
    int,
    float,
    complex,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    keras.Variable,
    keras.KerasTensor,
    keras.Optimizer,
    tf.Module,
    tf.Variable,
    tf.distribute.Strategy,
)
# Packages whose objects are not searched; Keras' objects with a `__dict__` are.
_FOREIGN = ("tensorflow", "numpy", "threading", "_thread", "tfdist", "h5py")
_CONTAINERS = (list, dict, set, collections.deque)


class SharedState:
    """Saves and restores the Python state of a model for each replica.

    Args:
        model: The model; its layers, metrics, losses and their attributes are included.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._restore: Callable[[], None] = _nothing

    def record(self) -> None:
        """Records the current state, with which every replica begins."""
        self._restore = self.keep()

    def begin(self) -> None:
        """Restores the recorded state."""
        self._restore()

    def keep(self) -> Callable[[], None]:
        """Saves the current state; returns a function that restores it."""
        kept = [(thing, _content(thing)) for thing in _reachable(self._model)]

        def restore() -> None:
            for thing, content in kept:
                if not _same(_content(thing), content):
                    _fill(thing, content)

        return restore


def _nothing() -> None:
    """Restores nothing."""


def _reachable(root: Any) -> Iterator[Any]:
    """Yields the containers and the `__dict__`s of objects that are reachable from `root`."""
    seen: set[int] = set()
    stack: list[Any] = [root]
    while stack:
        thing = stack.pop()
        if thing is None or id(thing) in seen or isinstance(thing, _CLOSED):
            continue
        seen.add(id(thing))
        if isinstance(thing, _CONTAINERS):
            yield thing
            stack.extend(_content(thing).values() if isinstance(thing, dict) else _content(thing))
            elements = wrapped_elements(thing)
            if elements is not None:
                yield vars(thing)  # TensorFlow's wrapper of a list holds the elements twice.
                stack.append(elements)
        elif isinstance(thing, (tuple, frozenset)):
            stack.extend(thing)
        elif isinstance(thing, types.MethodType):
            stack.append(thing.__self__)
        elif _has_state(thing):
            attributes = vars(thing)
            yield attributes
            stack.extend(attributes.values())


def _has_state(thing: Any) -> bool:
    kind = type(thing)
    if kind.__module__.split(".")[0] in _FOREIGN or kind.__name__ == "Node":
        return False
    return isinstance(getattr(thing, "__dict__", None), dict)


def _content(thing: Any) -> Any:
    """Returns a shallow copy through the built-in type, as Keras' containers track access."""
    if isinstance(thing, dict):
        return dict(dict.items(wrapped_dict(thing)))
    if isinstance(thing, set):
        return set(thing)
    return list(list.__iter__(thing)) if isinstance(thing, list) else list(thing)


def _same(one: Any, other: Any) -> bool:
    """Returns whether two copies hold the same objects."""
    if len(one) != len(other):
        return False
    if isinstance(one, dict):
        return list(map(_entry, one.items())) == list(map(_entry, other.items()))
    if isinstance(one, set):
        return {id(element) for element in one} == {id(element) for element in other}
    return all(a is b for a, b in zip(one, other, strict=True))


def _entry(item: tuple[Any, Any]) -> tuple[int, int]:
    return id(item[0]), id(item[1])


def _fill(thing: Any, content: Any) -> None:
    if isinstance(thing, dict):
        dict.clear(wrapped_dict(thing))
        dict.update(wrapped_dict(thing), content)
        note_changed_dict(thing, content)
    elif isinstance(thing, set):
        set.clear(thing)
        set.update(thing, content)
    elif isinstance(thing, list):
        list.__setitem__(thing, slice(None), content)
    else:
        thing.clear()
        thing.extend(content)
