"""What is sent is read as it was, and what is not exactly a message is none."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tfdist.rendezvous.messages import MAX_BYTES, NO_PROOF, Hello, decode, is_http2

KINDS = ("foreign", "taken")
GOOD: list[Any] = [
    "hello",
    "worker/12",
    "f" * 16,
    "c" * 32,
    "0123456789abcdef" * 4,
    [["taken", "ps/0"], ["foreign", "chief/0"]],
    ["evaluator/3"],
]


def line(fields: Any) -> bytes:
    return b"tfdist-meet/2 " + json.dumps(fields).encode() + b"\n"


def test_every_field_survives_the_wire() -> None:
    faults = (("taken", "ps/0"), ("foreign", "chief/0"))
    for kind in ("hello", "ready"):
        hello = Hello(kind, *GOOD[1:5], faults, ("evaluator/3", "worker/0"))
        assert decode(hello.encode(), KINDS) == hello
    assert Hello("hello", *GOOD[1:5], faults, ("evaluator/3",)).encode() == line(GOOD)
    least = Hello("ready", "ps/0", "0" * 16, "0" * 32)
    assert (least.faults, least.missing, least.proof) == ((), (), NO_PROOF)
    assert decode(least.encode(), ()) == least


def test_of_a_large_cluster_so_much_is_said_as_can_be_read() -> None:
    names = tuple(f"evaluator/{100000 + index}" for index in range(1000))
    hello = Hello("hello", *GOOD[1:5], tuple(("foreign", name) for name in names), names)
    read = decode(hello.encode(), KINDS)
    assert read is not None
    assert read.missing == names[:32]
    assert read.faults == hello.faults[:32]


BAD: list[tuple[int, Any]] = [
    (0, "Hello"),
    (0, ["hello"]),
    (0, None),
    (1, "boss/0"),
    (1, "worker/-1"),
    (1, "worker/1234567"),
    (1, "worker/٣"),
    (1, "worker/1\n"),
    (1, {"worker": 0}),
    (2, "f" * 15),
    (2, "g" * 16),
    (3, "c" * 31),
    (3, "C" * 32),
    (3, None),
    (4, "0" * 63),
    (4, "0" * 65),
    (4, "A" * 64),
    (4, 0),
    (5, None),
    (5, [["misplaced", "ps/0"]]),
    (5, [["taken", "ps/0", "ps/0"]]),
    (5, [["taken", 0]]),
    (5, ["taken"]),
    (5, [[["taken"], "ps/0"]]),
    (5, [["taken", "ps/zero"]]),
    (5, [["taken", "ps/0"]] * 33),
    (6, "worker/0"),
    (6, [0]),
    (6, ["worker"]),
    (6, ["worker/0"] * 33),
]


@pytest.mark.parametrize(("place", "value"), BAD, ids=lambda given: repr(given)[:30])
def test_a_field_that_is_not_as_it_should_be_makes_it_no_message(place: int, value: Any) -> None:
    assert decode(line(GOOD), KINDS) is not None
    assert decode(line([*GOOD[:place], value, *GOOD[place + 1 :]]), KINDS) is None


@pytest.mark.parametrize(
    "data",
    [
        line(GOOD)[:-1],
        line(GOOD).replace(b"/2 ", b"/1 "),
        b" " + line(GOOD),
        line(GOOD[:6]),
        line([*GOOD, 0]),
        line(dict(enumerate(GOOD))),
        line("hello!"),
        line(None),
        line(GOOD)[:-2] + b"\n",
        b"tfdist-meet/2 \xff\n",
        b"tfdist-meet/2 " + b"[" * 8000 + b"\n",
        line(GOOD)[:-1] + b" " * MAX_BYTES + b"\n",
    ],
    ids=range(12),
)
def test_a_line_that_is_not_as_it_should_be_is_no_message(data: bytes) -> None:
    assert decode(data, KINDS) is None


def test_a_line_of_the_longest_length_is_read() -> None:
    short = line(GOOD)
    assert decode(short[:-1] + b" " * (MAX_BYTES - len(short)) + b"\n", KINDS) is not None
    assert decode(short[:-1] + b" " * (MAX_BYTES - len(short) + 1) + b"\n", KINDS) is None


def test_http2_is_known_by_its_first_frame() -> None:
    assert is_http2(b"\x00\x00\x18\x04\x00\x00\x00\x00\x00" + b"\x00" * 24)
    assert not is_http2(b"\x00\x00\x18\x04\x00\x00\x00\x00")
    assert not is_http2(b"\x00\x00\x18\x04\x00\x00\x00\x00\x01")  # On another stream.
    assert not is_http2(b"\x00\x00\x18\x06\x00\x00\x00\x00\x00")  # A ping.
    assert not is_http2(b"HTTP/1.1 400 Bad Request\r\n")


def test_a_proof_is_of_all_that_is_said_to_this_one_under_this_key() -> None:
    hello = Hello("hello", *GOOD[1:4], faults=(("taken", "ps/0"),), missing=("ps/0",))
    signed = hello.signed(b"key", "caller", "d" * 32)
    assert signed.is_proven(b"key", "caller", "d" * 32)
    assert not hello.is_proven(b"key", "caller", "d" * 32)
    assert not signed.is_proven(b"another key", "caller", "d" * 32)
    assert not signed.is_proven(b"key", "answerer", "d" * 32), "it was reflected"
    assert not signed.is_proven(b"key", "caller", "e" * 32), "it was said before"
    for change in (
        {"kind": "ready"},
        {"task": "worker/1"},
        {"nonce": "0" * 16},
        {"challenge": "0" * 32},
        {"faults": ()},
        {"missing": ()},
    ):
        changed = dataclasses.replace(signed, **change)
        assert not changed.is_proven(b"key", "caller", "d" * 32), change
