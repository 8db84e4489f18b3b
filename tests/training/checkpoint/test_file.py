"""A checkpoint is read as it was written, or not at all; a file is there whole, or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import time

import ml_dtypes
import numpy as np
import pytest

from tfdist.training.checkpoint import file as module
from tfdist.training.checkpoint.file import (
    DamagedError,
    LazyArray,
    UnknownFormatError,
    begin,
    decode,
    finish,
    open_checkpoint,
    write,
)


def content():
    generator = np.random.default_rng(0)
    arrays = {
        "model/0": generator.normal(size=(3, 2)).astype("float32"),
        "model/1": np.array(-(2**62), "int64"),
        "empty": np.zeros((0, 4), "float16"),
        "turned": np.arange(6, dtype="int8").reshape(2, 3).T,
        "cut": np.arange(10.0)[::3],
        "bfloat16": np.array([1.5, -3e30]).astype(ml_dtypes.bfloat16),
        "bool": np.array([True, False]),
    }
    return {"position": {"epoch": 3}, "logs": {"loss": 0.1, "é": None}}, arrays


def encode(manifest, arrays) -> bytes:
    """The bytes of a checkpoint."""
    file = io.BytesIO()
    write(file, manifest, arrays)
    return file.getvalue()


def put(path, *content):
    finish(begin(path, *content), path)


def test_all_is_read_as_it_was_written_and_in_its_order():
    manifest, arrays = content()
    read = decode(encode(manifest, arrays))
    assert read.manifest == manifest
    assert read.names == list(arrays)
    for name, array in reversed(arrays.items()):
        assert read.describe(name) == (array.dtype, array.shape)
        np.testing.assert_array_equal(read.read(name), array, strict=True)


def test_an_array_is_fetched_when_its_turn_comes():
    _, arrays = content()
    fetched = []

    def lazy(name, array):
        def fetch():
            fetched.append(name)
            return array

        return LazyArray(array.dtype, array.shape, fetch)

    late = {name: lazy(name, array) for name, array in arrays.items()}
    assert encode({}, late) == encode({}, arrays)
    assert fetched == list(arrays)


def test_the_bytes_are_those_of_the_format():
    whole = encode({"a": 1}, {"x": np.array([1, 2], "int16")})
    first, second, data = whole.split(b"\n", 2)
    body = second + b"\n" + data
    digest = hashlib.sha256(body).hexdigest()
    assert first.decode() == f"tfdist-checkpoint 1 {digest} {len(body)}"
    table = [{"name": "x", "dtype": "int16", "shape": [2]}]
    assert json.loads(second) == {"a": 1, "arrays": table}
    assert data == b"\x01\x00\x02\x00"


def test_any_bit_that_turns_and_any_byte_that_is_missing_is_seen():
    data = encode(*content())
    for at in range(0, len(data), 7):
        turned = bytearray(data)
        turned[at] ^= 1 << at % 8
        for bad in (bytes(turned), data[:at]):
            with pytest.raises((DamagedError, UnknownFormatError)):
                decode(bad)
    with pytest.raises(DamagedError, match="bytes of"):
        decode(data + b"\n")


def test_objects_are_refused_by_name():
    with pytest.raises(ValueError, match=r"model/7: an array of Python objects"):
        encode({}, {"fine": np.zeros(1), "model/7": np.array([{}], object)})


def test_a_file_is_put_in_place_and_nothing_else(tmp_path):
    path = tmp_path / "checkpoint"
    for number in (1, 2):
        put(path, {"number": number}, {})
        with open_checkpoint(path) as read:
            assert read.manifest == {"number": number}
        assert os.listdir(tmp_path) == ["checkpoint"]


def test_the_old_file_stays_whole_until_the_new_one_is_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    put(path, {"a": "old"}, {})
    old = path.read_bytes()
    synced = []

    def replace(source, target):
        assert path.read_bytes() == old
        assert os.stat(source).st_ino in synced
        os.rename(source, target)

    def sync(number):
        synced.append(os.fstat(number).st_ino)

    monkeypatch.setattr(module.os, "fsync", sync)
    monkeypatch.setattr(module.os, "replace", replace)
    put(path, {"a": "new"}, {})
    with open_checkpoint(path) as read:
        assert read.manifest == {"a": "new"}
    assert synced == [path.stat().st_ino, tmp_path.stat().st_ino]


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["write", "sync"])
def test_of_a_file_that_could_not_be_written_nothing_is_left(tmp_path, monkeypatch, error, where):
    path = tmp_path / "checkpoint"
    put(path, {"a": "old"}, {})
    old = path.read_bytes()

    def fail(number=None):
        raise error

    arrays = {"x": LazyArray(np.dtype("int8"), (1,), fail)} if where == "write" else {}
    if where == "sync":
        monkeypatch.setattr(module.os, "fsync", fail)
    with pytest.raises(type(error)):
        put(path, {"a": "new"}, arrays)
    assert os.listdir(tmp_path) == ["checkpoint"]
    assert path.read_bytes() == old


def sealed(second: bytes, data: bytes = b"", number="1") -> bytes:
    """A file with the right checksum."""
    body = second + b"\n" + data
    return (
        f"tfdist-checkpoint {number} {hashlib.sha256(body).hexdigest()} {len(body)}\n".encode()
        + body
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (sealed(b"{}", number="2"), "it is of format 2, where this version has 1"),
        (sealed(b"{}"), "its list of arrays is not understood"),
        (sealed(b"no JSON"), "its list of arrays is not understood"),
        (sealed(b'{"arrays": 3}'), "its list of arrays is not understood"),
        (sealed(b'{"arrays": [{"name": "x"}]}'), "its list of arrays is not understood"),
        (
            sealed(b'{"arrays": [{"name": "x", "dtype": "complex7", "shape": []}]}'),
            "its list of arrays is not understood",
        ),
        (sealed(b"[" * 100_000), "its list of arrays is not understood"),
    ],
)
def test_what_is_whole_and_strange_is_named(data, message):
    with pytest.raises(UnknownFormatError, match=message):
        decode(data)


def test_an_array_that_is_not_all_there_is_an_error_not_a_wait():
    table = b'{"arrays": [{"name": "x", "dtype": "int8", "shape": [9]}]}'
    with pytest.raises(OSError, match="x: the file has become shorter"):
        decode(sealed(table, b"1234")).read("x")


def test_what_is_not_a_file_is_named_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    began = time.monotonic()
    with pytest.raises(DamagedError, match="it is not a file"):
        open_checkpoint(tmp_path / "fifo")
    with pytest.raises((DamagedError, OSError)):
        open_checkpoint(tmp_path)
    assert time.monotonic() - began < 30
