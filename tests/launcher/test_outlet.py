"""Output that is lost, full or slow makes nobody wait, and is reported once."""

from __future__ import annotations

import io
import os
import selectors

import pytest

from tfdist.launcher import outlet as module
from tfdist.launcher.outlet import LogFile, Outlet, two_outlets


@pytest.fixture
def pipe():
    read, write = os.pipe()
    with open(read, "rb", buffering=0) as reader, open(write, "w") as writer:
        yield reader, writer


def test_text_goes_through_and_what_an_encoding_lacks_is_replaced(pipe):
    reader, writer = pipe
    out = Outlet(writer, "stdout")
    out.write("one\ntwo é\n")
    assert reader.read(100).decode() == "one\ntwo é\n"
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Outlet(ascii_only, "stdout").write("é\n")
    assert ascii_only.buffer.getvalue() == b"?\n"


def test_a_reader_that_is_gone_is_reported_once_on_the_other_stream(pipe):
    reader, writer = pipe
    own = io.StringIO()
    lines, _ = two_outlets(writer, own)
    reader.close()
    for _ in range(3):
        lines.write("lost\n")
    assert own.getvalue() == (
        "tfdist: stdout cannot be written to (Broken pipe); the job continues without it\n"
    )


def test_a_full_disk_is_reported_once_and_writing_continues_when_there_is_room():
    said = []
    with open("/dev/full", "w") as full:
        out = Outlet(full, "stdout", said.append)
        out.write("a\n")
        out.write("b\n")
        assert not out._lost
    assert said == [
        "stdout cannot be written to (No space left on device); the job continues without it"
    ]


def test_both_streams_may_be_gone():
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as writer, open(os.dup(write), "w") as other:
        lines, own = two_outlets(writer, other)
        lines.write("a\n")
        own.write("b\n")
        lines.write("c\n")


def test_a_stream_that_was_closed_before_takes_everything():
    Outlet(None, "stdout").write("nobody\n")


def test_a_reader_that_does_not_read_makes_nobody_wait(pipe, monkeypatch):
    reader, writer = pipe
    monkeypatch.setattr(module, "_MOST_BYTES", 100_000)
    said = []
    out = Outlet(writer, "stdout", said.append)
    line = "x" * 99 + "\n"
    for _ in range(5000):  # More than a pipe and the outlet take.
        out.write(line)
    assert out.waiting
    assert said == ["stdout is not read; lines are dropped; the job continues without it"]
    with selectors.DefaultSelector() as selector:
        out.attend(selector)
        assert len(selector.get_map()) == 1
        text = b""
        while out.waiting:
            text += reader.read(1 << 16)
            assert selector.select(5.0)
            out.attend(selector)
        assert len(selector.get_map()) == 0
    os.set_blocking(reader.fileno(), False)
    while more := reader.read(1 << 16):
        text += more
    *whole, last = text.decode().splitlines()
    assert set(whole) == {line.rstrip()}
    dropped = 5000 - len(whole)
    assert last == f"tfdist: {dropped} lines were dropped: nobody read them"
    assert dropped > 1000


def test_a_log_on_a_full_disk_is_reported(tmp_path):
    said = []
    with open("/dev/full", "wb", buffering=0) as full:
        LogFile(full, said.append).write(b"a")
    assert said == ["--log-dir cannot be written to (No space left on device)"]
