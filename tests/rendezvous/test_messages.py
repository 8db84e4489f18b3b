"""What is sent is read as it was, and what is not exactly a message is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tfdist.rendezvous.messages import MAX_BYTES, Hello, decode, is_http2

KINDS = ("foreign", "taken")
GOOD: list[Any] = [
    "hello",
    "0123456789abcdef" * 4,
    "worker/12",
    "f" * 16,
    [["taken", "ps/0"], ["foreign", "chief/0"]],
    ["evaluator/3"],
]


def line(fields: Any) -> bytes:
    return b"tfdist-meet/1 " + json.dumps(fields).encode() + b"\n"


def test_every_field_survives_the_wire() -> None:
    faults = (("taken", "ps/0"), ("foreign", "chief/0"))
    for kind in ("hello", "ready"):
        hello = Hello(kind, GOOD[1], "worker/12", "f" * 16, faults, ("evaluator/3", "worker/0"))
        assert decode(hello.encode(), KINDS) == hello
    assert Hello("hello", *GOOD[1:4], faults, ("evaluator/3",)).encode() == line(GOOD)
    least = Hello("ready", "0" * 64, "ps/0", "0" * 16)
    assert (least.faults, least.missing) == ((), ())
    assert decode(least.encode(), ()) == least


def test_of_a_large_cluster_so_much_is_said_as_can_be_read() -> None:
    names = tuple(f"evaluator/{100000 + index}" for index in range(1000))
    hello = Hello("hello", *GOOD[1:4], tuple(("foreign", name) for name in names), names)
    read = decode(hello.encode(), KINDS)
    assert read is not None
    assert read.missing == names[:32]
    assert read.faults == hello.faults[:32]


BAD: list[tuple[int, Any]] = [
    (0, "Hello"),
    (0, ["hello"]),
    (0, None),
    (1, "0" * 63),
    (1, "0" * 65),
    (1, "A" * 64),
    (1, 0),
    (2, "boss/0"),
    (2, "worker/-1"),
    (2, "worker/1234567"),
    (2, "worker/٣"),
    (2, "worker/1\n"),
    (2, {"worker": 0}),
    (3, "f" * 15),
    (3, "g" * 16),
    (4, None),
    (4, [["misplaced", "ps/0"]]),
    (4, [["taken", "ps/0", "ps/0"]]),
    (4, [["taken", 0]]),
    (4, ["taken"]),
    (4, [[["taken"], "ps/0"]]),
    (4, [["taken", "ps/zero"]]),
    (4, [["taken", "ps/0"]] * 33),
    (5, "worker/0"),
    (5, [0]),
    (5, ["worker"]),
    (5, ["worker/0"] * 33),
]


@pytest.mark.parametrize(("place", "value"), BAD, ids=lambda given: repr(given)[:30])
def test_a_field_that_is_not_as_it_should_be_makes_it_no_message(place: int, value: Any) -> None:
    assert decode(line(GOOD), KINDS) is not None
    assert decode(line([*GOOD[:place], value, *GOOD[place + 1 :]]), KINDS) is None


@pytest.mark.parametrize(
    "data",
    [
        line(GOOD)[:-1],
        line(GOOD).replace(b"/1 ", b"/2 "),
        b" " + line(GOOD),
        line(GOOD[:5]),
        line([*GOOD, 0]),
        line(dict(enumerate(GOOD))),
        line("hello!"),
        line(None),
        line(GOOD)[:-2] + b"\n",
        b"tfdist-meet/1 \xff\n",
        b"tfdist-meet/1 " + b"[" * 8000 + b"\n",
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
