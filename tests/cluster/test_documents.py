"""A file that is named is read in bounded time and memory, or refused in one line."""

from __future__ import annotations

import os
import threading
import time

import pytest

from tfdist.cluster import documents as module
from tfdist.cluster.documents import load_documents
from tfdist.errors import ConfigError

MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 4)}], k{i}: 1}}\n" for i in range(1, 14)
)


def refused(path) -> str:
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        load_documents(str(path), "give a spec")
    assert time.monotonic() - began < 20
    text = str(caught.value)
    assert text.startswith(str(path)) and text.endswith("give a spec") and "\n" not in text
    return text


def test_all_documents_are_read(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: &x {b: 1}\nc: {<<: *x, b: 2}\n---\n- d\n")
    assert load_documents(str(path), "give a spec") == [{"a": {"b": 1}, "c": {"b": 2}}, ["d"]]
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert load_documents(str(path), "give a spec") == [{"a": 1}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MERGED, "has merge keys that multiply"),
        ("a: 1\na: 2\n", "has the key 'a' twice (line 2 column 1)"),
        ("x:\n  - {b: 1, b: 2}\n", "has the key 'b' twice (line 2 column 12)"),
        ("[" * 2000, "is not YAML"),
        ("{a: " * 2000, "is not YAML"),
        ("a: !!python/object:os.system x", "could not determine a constructor for the tag"),
        ("a: \x00", "is not YAML"),
        ("a: 1" + ":1" * 3_000_000, "has a number of 6000001 characters (line 1 column 4)"),
        ("a: 1" + ":1" * 3_000_000 + ".5", "has a number of 6000003 characters"),
        ("a: " + "9" * 5000, "has a number of 5000 characters"),
        *((f"a: !!{tag}", "is not YAML that can be read") for tag in ("int", "bool", "timestamp")),
    ],
)
def test_yaml_that_is_none_or_too_much_is_refused(tmp_path, text, said):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    assert said in refused(path)


def test_what_has_no_end_is_refused():
    assert "has more than 8 MB" in refused("/dev/zero")


def test_what_is_no_file_is_refused(tmp_path):
    assert "cannot be read" in refused(tmp_path)
    assert "cannot be read" in refused(tmp_path / "absent")
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "is not text" in refused(path)


def test_a_pipe_is_read_to_its_end_and_not_for_ever(tmp_path, monkeypatch):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)

    def write() -> None:
        time.sleep(0.3)
        os.write(writer, b"a: 1\n")
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    assert load_documents(str(path), "give a spec") == [{"a": 1}]
    thread.join()
    writer = os.open(path, os.O_RDWR)
    monkeypatch.setattr(module, "_PIPE_SECONDS", 0.3)
    try:
        assert "has not been written to its end" in refused(path)
    finally:
        os.close(writer)
