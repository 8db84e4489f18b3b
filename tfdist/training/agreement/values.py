"""Describes arguments and objects as fields of text that do not depend on the process."""

from __future__ import annotations

import re
import types
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.training.agreement.checksum import of_structure
from tfdist.training.agreement.compare import Field

# Keras numbers the names of objects in the order of their creation, which may differ.
_NUMBERED = re.compile(r"_\d+(?=_|/|$)")
# Not described: the state of a seed generator is a variable, which is compared itself.
_SEEDS = {"seed", "seed_generator"}
# Attributes that may differ between workers: their place and their files.
_OWN = re.compile(r"chief|worker|task|rank|index|path|dir|file|log|verbose")
_DEPTH = 8
_LONGEST = 200


def fields_of(name: str, value: Any, depth: int = 0) -> Iterator[Field]:
    """Describes a value as one field, or as several with names that begin alike.

    Args:
        name: The name of the field.
        value: A number, a text, an array, a function, a structure of them, an object of Keras'
            or of a class that has no `get_config`.
        depth: The number of values that contain it.
    """
    if value is None or isinstance(value, (bool, int, str, bytes)):
        yield name, _bounded(repr(value))
    elif isinstance(value, (float, np.number, np.bool_)):
        yield name, repr(value if isinstance(value, float) else value.item())
    elif isinstance(value, np.ndarray) or tf.is_tensor(value):
        yield name, _of_tensor(value)
    elif isinstance(value, (np.dtype, tf.DType)):
        yield name, str(getattr(value, "name", value))
    elif depth > _DEPTH:
        yield name, type(value).__name__
    elif isinstance(value, dict):
        yield from _of_dict(name, value, depth)
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from _of_sequence(name, value, depth)
    elif isinstance(value, types.FunctionType):
        yield name, _of_function(value)
    elif isinstance(value, type) or callable(value) and hasattr(value, "__qualname__"):
        yield name, getattr(value, "__qualname__", repr(type(value)))
    else:
        yield from _of_object(name, value, depth)


def config_of(thing: Any) -> dict[str, Any] | None:
    """Returns the result of `get_config`; None where there is none or it fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It is not to be saved.
            config = thing.get_config()
    except Exception:  # Of user code, anything; its plain attributes have to do.
        return None
    return config if isinstance(config, dict) else None


def attributes_of(thing: Any) -> dict[str, Any]:
    """Returns an object's numbers and flags, except those about its place or its files."""
    plain = (bool, int, float)
    return {
        key: value
        for key, value in sorted(getattr(thing, "__dict__", {}).items())
        if not key.startswith("_") and isinstance(value, plain) and not _OWN.search(key.lower())
    }


def code_of(kind: type) -> str:
    """Returns a checksum of a class's methods, without those inherited from Keras."""
    crc = 0
    for base in kind.__mro__:
        if base.__module__.split(".")[0] in ("keras", "builtins", "tensorflow", "abc"):
            continue
        for name, member in sorted(vars(base).items()):
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(function, types.FunctionType):
                crc = zlib.crc32(name.encode() + _code(function.__code__), crc)
    return f"{crc:08x}"


def numberless(name: str) -> str:
    """Returns a name that Keras made, without its number."""
    return _NUMBERED.sub("", name)


def _of_dict(name: str, value: dict[Any, Any], depth: int) -> Iterator[Field]:
    if "class_name" in value and "config" in value:
        yield name, str(value["class_name"])
        if value["config"] is not None:
            yield from fields_of(name, value["config"], depth + 1)
        return
    if depth == 0:
        yield name, f"{len(value)} values"
    for key in sorted(value, key=str):
        if key in _SEEDS:
            continue
        inner = value[key]
        if key == "name" and isinstance(inner, str):
            inner = numberless(inner)
        yield from fields_of(f"{name}.{key}", inner, depth + 1)


def _of_sequence(name: str, value: Any, depth: int) -> Iterator[Field]:
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    if all(item is None or isinstance(item, (bool, int, float, str)) for item in value):
        yield name, _bounded(repr(list(value)))
        return
    for index, item in enumerate(value):
        yield from fields_of(f"{name}[{index}]", item, depth + 1)


def _of_object(name: str, value: Any, depth: int) -> Iterator[Field]:
    yield name, type(value).__name__
    config = config_of(value) if hasattr(value, "get_config") else None
    if config is None:
        config = attributes_of(value)
    if isinstance(value, (keras.Loss, keras.Metric)):
        config = {k: v for k, v in config.items() if k != "name"} | {
            "name": numberless(str(getattr(value, "name", "")))
        }
    yield from fields_of(name, config, depth + 1)
    if type(value).__module__.split(".")[0] != "keras":
        yield f"{name}.code", code_of(type(value))


def _of_tensor(value: Any) -> str:
    array = np.asarray(value) if isinstance(value, np.ndarray) else None
    if array is None:
        try:
            array = np.asarray(value)
        except Exception:  # A symbolic tensor has no value.
            return f"{getattr(value, 'shape', '')} {getattr(value, 'dtype', '')}"
    return repr(array.item()) if array.ndim == 0 else " ".join(of_structure(array))


def _of_function(function: types.FunctionType) -> str:
    return f"{function.__qualname__} ({zlib.crc32(_code(function.__code__)):08x})"


def _code(code: types.CodeType) -> bytes:
    """Returns the bytes of a function's code, without its file and line numbers."""
    parts = [code.co_code, repr(code.co_names).encode()]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            parts.append(_code(constant))
        elif isinstance(constant, frozenset):
            parts.append(repr(sorted(constant, key=repr)).encode())
        else:
            parts.append(repr(constant).encode())
    return b"\0".join(parts)


def _bounded(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:80]}... ({zlib.crc32(text.encode()):08x})"
