"""Describes values and objects as fields of text, by Keras' own serialization."""

from __future__ import annotations

import re
import types
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.keras_internals import is_of_keras
from tfdist.training.agreement.checksum import of_structure
from tfdist.training.agreement.compare import Field

# Keras numbers the names of objects in the order of their creation, which may differ.
_NUMBERED = re.compile(r"_\d+(?=_|/|$)")
# Not described: the state of a seed generator is a variable, which is compared itself.
_SEEDS = {"seed", "seed_generator"}
# Attributes that may differ between workers: their place and their files.
_OWN = re.compile(r"chief|worker|task|rank|index|path|dir|file|log|verbose")
_LONGEST = 200


def fields_of(name: str, value: Any) -> Iterator[Field]:
    """Describes a value as one field, or as several whose names begin with `name`."""
    return flattened(name, serialized(value))


def serialized(value: Any) -> Any:
    """Returns a value as numbers, texts, lists and dicts that are the same in every process.

    An object becomes a dict of its `class_name`, its `config` and, if it is not Keras', a checksum
    of its `code`; a function its name and such a checksum; an array its shape, type and checksum.
    """
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, np.ndarray) or tf.is_tensor(value):
        return _of_tensor(value)
    if isinstance(value, (np.dtype, tf.DType)):
        return value.name
    if isinstance(value, dict):
        return {str(key): serialized(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [serialized(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return [serialized(each) for each in sorted(value, key=repr)]
    if isinstance(value, types.FunctionType):
        return f"{value.__qualname__} ({zlib.crc32(_code(value.__code__)):08x})"
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__
    result = {"class_name": type(value).__name__, "config": serialized(config_of(value))}
    if not is_of_keras(type(value)):
        result["code"] = code_of(type(value))
    return result


def config_of(thing: Any) -> dict[str, Any]:
    """Returns what Keras serializes of an object; its plain attributes if it cannot."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It is not to be saved.
            config = thing.get_config()
    except Exception:  # User code may raise anything.
        config = None
    return config if isinstance(config, dict) else attributes_of(thing)


def flattened(name: str, value: Any) -> Iterator[Field]:
    """Describes what `serialized` returns as fields."""
    if isinstance(value, dict) and "class_name" in value:
        config = value.get("config")
        if isinstance(config, dict):
            yield name, value["class_name"]
            yield from flattened(name, config)
        else:
            yield name, f"{value['class_name']} {config}"
        if "code" in value:
            yield f"{name}.code", value["code"]
    elif isinstance(value, dict):
        for key in sorted(value.keys() - _SEEDS):
            inner = value[key]
            if key == "name" and isinstance(inner, str):
                inner = numberless(inner)
            yield from flattened(f"{name}.{key}", inner)
    elif isinstance(value, list) and any(isinstance(each, (dict, list)) for each in value):
        for index, each in enumerate(value):
            yield from flattened(f"{name}[{index}]", each)
    else:
        text = repr(value)
        short = len(text) <= _LONGEST
        yield name, text if short else f"{text[:80]}... ({zlib.crc32(text.encode()):08x})"


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
        if is_of_keras(base) or base.__module__.split(".")[0] in ("builtins", "tensorflow", "abc"):
            continue
        for name, member in sorted(vars(base).items()):
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(function, types.FunctionType):
                crc = zlib.crc32(name.encode() + _code(function.__code__), crc)
    return f"{crc:08x}"


def numberless(name: str) -> str:
    """Returns a name that Keras gave, without its number."""
    return _NUMBERED.sub("", name)


def _of_tensor(value: Any) -> Any:
    try:
        array = np.asarray(value)
    except Exception:  # A symbolic tensor has no value.
        return f"{getattr(value, 'shape', '')} {getattr(value, 'dtype', '')}"
    return array.item() if array.ndim == 0 else " ".join(of_structure(array))


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
