"""A checkpoint is read as it was written, or not at all; a file is there whole, or not at all."""

from __future__ import annotations

import hashlib
import json
import os

import ml_dtypes
import numpy as np
import pytest

from tfdist.training.checkpoint import file as module
from tfdist.training.checkpoint.file import DamagedError, decode, encode, write


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


def test_all_is_read_as_it_was_written_and_in_its_order():
    manifest, arrays = content()
    read = decode(b"".join(encode(manifest, arrays)))
    assert read.manifest == manifest
    assert list(read.arrays) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read.arrays[name], array, strict=True)


def test_the_bytes_are_those_of_the_format():
    pieces = encode({"a": 1}, {"x": np.array([1, 2], "int16")})
    first, second, data = b"".join(pieces).split(b"\n", 2)
    body = second + b"\n" + data
    digest = hashlib.sha256(body).hexdigest()
    assert first.decode() == f"tfdist-checkpoint 1 {digest} {len(body)}"
    table = [{"name": "x", "dtype": "int16", "shape": [2]}]
    assert json.loads(second) == {"a": 1, "arrays": table}
    assert data == b"\x01\x00\x02\x00"


def test_any_bit_that_turns_and_any_byte_that_is_missing_is_seen():
    data = b"".join(encode(*content()))
    for at in range(0, len(data), 7):
        turned = bytearray(data)
        turned[at] ^= 1 << at % 8
        for bad in (bytes(turned), data[:at]):
            with pytest.raises(DamagedError):
                decode(bad)
    with pytest.raises(DamagedError, match="bytes of"):
        decode(data + b"\n")


def test_objects_are_refused_by_name():
    with pytest.raises(ValueError, match=r"model/7: an array of Python objects"):
        encode({}, {"fine": np.zeros(1), "model/7": np.array([{}], object)})


def test_a_file_is_put_in_place_and_nothing_beside_it(tmp_path):
    path = tmp_path / "checkpoint"
    for pieces in ([b"one", b"", b"two"], [b"other"]):
        write(path, pieces)
        assert path.read_bytes() == b"".join(pieces)
        assert os.listdir(tmp_path) == ["checkpoint"]


def test_the_old_file_stays_whole_until_the_new_one_is_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    write(path, [b"old"])
    synced = []

    def replace(source, target):
        assert path.read_bytes() == b"old"
        assert os.stat(source).st_size == 3 and os.stat(source).st_ino in synced
        os.rename(source, target)

    def sync(number):
        synced.append(os.fstat(number).st_ino)

    monkeypatch.setattr(module.os, "fsync", sync)
    monkeypatch.setattr(module.os, "replace", replace)
    write(path, [b"new"])
    assert path.read_bytes() == b"new"
    assert synced == [path.stat().st_ino, tmp_path.stat().st_ino]


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_of_a_file_that_could_not_be_written_nothing_is_left(tmp_path, monkeypatch, error):
    path = tmp_path / "checkpoint"
    write(path, [b"old"])

    def fail(number):
        raise error

    monkeypatch.setattr(module.os, "fsync", fail)
    with pytest.raises(type(error)):
        write(path, [b"new"])
    assert os.listdir(tmp_path) == ["checkpoint"]
    assert path.read_bytes() == b"old"
