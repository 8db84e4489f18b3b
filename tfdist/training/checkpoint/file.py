"""Writes a checkpoint as one file, whole or not at all, and reads it array by array.

The first line is `tfdist-checkpoint 1 SHA256 BYTES`, where SHA256 and BYTES are of all that
follows it. The second is a JSON object; its "arrays" list names, in order, the arrays whose
bytes (little-endian, C order) follow: `{"name": ..., "dtype": ..., "shape": [...]}`. Nothing
in it is ever executed. No more than one array is in memory at a time.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes  # noqa: F401  (gives NumPy the names of bfloat16 and its kin)
import numpy as np

from tfdist.files import removed_on_error, unfinished

_NAME = "tfdist-checkpoint"
_FORMAT = 1
_LONGEST_FIRST_LINE = 200
_CHUNK = 1 << 20


class DamagedError(Exception):
    """The bytes are not those of a whole checkpoint; the message gives the reason."""


class UnknownFormatError(Exception):
    """The checkpoint is whole, but of another version of tfdist; the message names it."""


@dataclass(frozen=True)
class LazyArray:
    """An array that is fetched when it is written.

    Attributes:
        dtype: Its type.
        shape: Its shape.
        fetch: Returns it.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fetch: Callable[[], np.ndarray]


Arrays = Mapping[str, np.ndarray | LazyArray]


def begin(path: Path, manifest: Mapping[str, Any], arrays: Arrays) -> Path:
    """Writes the bytes of a checkpoint next to its place.

    Args:
        path: Its place.
        manifest: Facts about the run, as JSON can hold them.
        arrays: Its arrays, by name.

    Returns:
        The file, for `finish`.

    Raises:
        OSError: The file could not be written. Nothing is left of it.
        ValueError: An array holds Python objects.
    """
    temporary = unfinished(path)
    with removed_on_error(temporary), open(temporary, "wb") as file:
        write(file, manifest, arrays)
    return temporary


def finish(temporary: Path, path: Path) -> None:
    """Puts a file in its place once it is on the disk.

    Raises:
        OSError: It could not be written. Nothing is left of it.
    """
    with removed_on_error(temporary):
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write(file: BinaryIO, manifest: Mapping[str, Any], arrays: Arrays) -> None:
    """Writes a checkpoint to a file that is empty and can be sought in.

    Raises:
        OSError: It could not be written.
        ValueError: An array holds Python objects.
    """
    table = []
    size = 0
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(f"{name}: an array of Python objects cannot be saved")
        table.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape)})
        size += math.prod(array.shape) * array.dtype.itemsize
    header = json.dumps({**manifest, "arrays": table}).encode() + b"\n"
    size += len(header)
    digest = hashlib.sha256()
    file.write(_first_line("0" * digest.digest_size * 2, size))
    for piece in _pieces(header, arrays):
        digest.update(piece)
        file.write(piece)
    file.seek(0)
    file.write(_first_line(digest.hexdigest(), size))
    file.seek(0, os.SEEK_END)
    file.flush()


def _first_line(digest: str, size: int) -> bytes:
    return f"{_NAME} {_FORMAT} {digest} {size}\n".encode()


def _pieces(header: bytes, arrays: Arrays) -> Iterator[memoryview]:
    yield memoryview(header)
    for array in arrays.values():
        values = array.fetch() if isinstance(array, LazyArray) else array
        yield np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


class Reader:
    """A checkpoint that is intact.

    Args:
        file: Its bytes; closed with the reader.

    Attributes:
        manifest: Facts about the run, as JSON holds them.
        names: The names of the arrays, in the order they were saved in.

    Raises:
        DamagedError: The bytes are truncated, changed, or not a checkpoint.
        UnknownFormatError: They are whole, but of another version.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        start = _check(file)
        header = file.readline()
        try:
            self.manifest: dict[str, Any] = json.loads(header)
            self._entries = _entries(self.manifest.pop("arrays"), start + len(header))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UnknownFormatError(f"its list of arrays is not understood ({error!r})") from None
        self.names = list(self._entries)

    def describe(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Returns an array's type and shape."""
        dtype, shape, _ = self._entries[name]
        return dtype, shape

    def read(self, name: str) -> np.ndarray:
        """Reads one array.

        Raises:
            OSError: It could not be read.
        """
        dtype, shape, place = self._entries[name]
        values = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
        self._file.seek(place)
        view, done = values.data, 0
        while done < len(values):
            count = self._file.readinto(view[done:])  # type: ignore[attr-defined]
            if not count:
                raise OSError(f"{name}: the file has become shorter")
            done += count
        return values.view(dtype).reshape(shape)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_checkpoint(path: Path) -> Reader:
    """Opens a checkpoint, and reads it once to check it.

    Raises:
        OSError: It cannot be read.
        DamagedError: It is not whole, or no file.
        UnknownFormatError: It is of another version.
    """
    # A FIFO of that name would keep whoever opens it waiting.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = open(descriptor, "rb", buffering=_CHUNK)  # noqa: SIM115
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DamagedError("it is not a file")
        return Reader(file)
    except BaseException:
        file.close()
        raise


def decode(data: bytes) -> Reader:
    """Reads the bytes of a checkpoint; see `Reader`."""
    return Reader(io.BytesIO(data))


def _check(file: BinaryIO) -> int:
    """Checks size and checksum; returns where the second line begins, and seeks there."""
    first = file.readline(_LONGEST_FIRST_LINE)
    words = first.decode("ascii", "replace").rstrip("\n").split(" ")
    if not first:
        raise DamagedError("it is empty")
    known = len(words) == 4 and words[0] == _NAME and words[3].isdigit() and words[1].isdigit()
    if not first.endswith(b"\n") or not known or len(words[3]) > 18:
        raise DamagedError("it does not begin as a checkpoint does")
    size, digest = 0, hashlib.sha256()
    while chunk := file.read(_CHUNK):
        size += len(chunk)
        digest.update(chunk)
    if size != int(words[3]):
        raise DamagedError(f"it has {size} bytes of {words[3]}")
    if digest.hexdigest() != words[2]:
        raise DamagedError("its checksum does not match")
    if words[1] != str(_FORMAT):
        raise UnknownFormatError(f"it is of format {words[1]}, where this version has {_FORMAT}")
    file.seek(len(first))
    return len(first)


def _entries(
    table: list[dict[str, Any]], place: int
) -> dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]:
    """Returns type, shape and place of each array.

    Raises:
        ValueError: The table is not one; or TypeError, KeyError, AttributeError.
    """
    found = {}
    for entry in table:
        dtype, shape = np.dtype(entry["dtype"]), tuple(map(int, entry["shape"]))
        if dtype.hasobject or any(size < 0 for size in shape):
            raise ValueError(f"{entry['name']}: {dtype} {shape}")
        found[str(entry["name"])] = dtype, shape, place
        place += math.prod(shape) * dtype.itemsize
    return found
