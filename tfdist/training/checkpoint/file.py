"""Writes a checkpoint as one file, whole or not at all, and checks it when reading.

The first line is `tfdist-checkpoint 1 SHA256 BYTES`, where SHA256 and BYTES are of all that
follows it. The second is a JSON object; its "arrays" list names, in order, the arrays whose
bytes (little-endian, C order) follow: `{"name": ..., "dtype": ..., "shape": [...]}`. Nothing
in it is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the names of bfloat16 and its kin)
import numpy as np

_MAGIC = "tfdist-checkpoint 1"
_LONGEST_FIRST_LINE = 200


class DamagedError(Exception):
    """The bytes are not those of a whole checkpoint; the message gives the reason."""


@dataclass(frozen=True)
class Content:
    """The content of a checkpoint.

    Attributes:
        manifest: Facts about the run, as JSON can hold them.
        arrays: Arrays by name, in the order they were saved in.
    """

    manifest: dict[str, Any]
    arrays: dict[str, np.ndarray]


def encode(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[bytes]:
    """Returns the pieces of a checkpoint's bytes, in order.

    Raises:
        ValueError: An array holds Python objects.
    """
    table, pieces = [], []
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(f"{name}: an array of Python objects cannot be saved")
        table.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape)})
        pieces.append(np.ascontiguousarray(array).tobytes())
    header = json.dumps({**manifest, "arrays": table}).encode() + b"\n"
    body = [header, *pieces]
    digest = hashlib.sha256()
    for piece in body:
        digest.update(piece)
    size = sum(map(len, body))
    return [f"{_MAGIC} {digest.hexdigest()} {size}\n".encode(), *body]


def decode(data: bytes) -> Content:
    """Reads the bytes that `encode` made.

    Raises:
        DamagedError: The bytes are truncated, changed, or not a checkpoint.
    """
    first, newline, _ = data[:_LONGEST_FIRST_LINE].partition(b"\n")
    words = first.decode("ascii", "replace").split(" ")
    if not data:
        raise DamagedError("it is empty")
    if not newline or len(words) != 4 or " ".join(words[:2]) != _MAGIC or not words[3].isdigit():
        raise DamagedError("it does not begin as a checkpoint does")
    body = memoryview(data)[len(first) + 1 :]
    if len(body) != int(words[3]):
        raise DamagedError(f"it has {len(body)} bytes of {words[3]}")
    if hashlib.sha256(body).hexdigest() != words[2]:
        raise DamagedError("its checksum does not match")
    end = data.index(b"\n", len(first) + 1) + 1
    manifest = json.loads(data[len(first) + 1 : end])
    arrays = {}
    for entry in manifest.pop("arrays"):
        dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
        count = math.prod(shape)
        values = np.frombuffer(data, dtype, count, offset=end)
        arrays[entry["name"]] = values.reshape(shape)
        end += count * dtype.itemsize
    return Content(manifest, arrays)


def write(path: Path, pieces: list[bytes]) -> None:
    """Writes a file atomically: the whole new file, or none.

    Raises:
        OSError: The file could not be written. Nothing is left of it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
