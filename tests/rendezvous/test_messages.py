"""What is sent is read as it was, and what is not exactly a message is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tfdist.rendezvous.messages import (
    END,
    GO,
    LEAVE,
    WAIT,
    Hello,
    Problem,
    Status,
    is_http2,
)

NONCE = "0123456789abcdef"
PROBLEMS = tuple(Problem("missing", f"worker/{index}", f"away {index}") for index in range(20))


def carry(message: Any) -> Any:
    """As a connection does."""
    return json.loads(json.dumps(message))


@pytest.mark.parametrize(
    "message",
    [
        Hello("worker/12", NONCE),
        Hello("evaluator/0", NONCE, reports=True),
        Hello("worker/0", NONCE, version="1.2.dev0+local"),
        Status(WAIT),
        Status(LEAVE, (Problem("taken", "ps/0", "its port is taken"),)),
        Status(WAIT, PROBLEMS[:8], 4),
        Status(GO),
        Status(END, PROBLEMS[:1]),
    ],
    ids=repr,
)
def test_every_field_survives_the_wire(message: Hello | Status) -> None:
    assert type(message).decode(carry(message.encode())) == message


def test_of_many_problems_so_many_are_sent_as_are_named() -> None:
    answer = Status(WAIT, PROBLEMS, 2)
    assert Status.decode(carry(answer.encode())) == Status(WAIT, PROBLEMS[:8], 14)


def test_a_text_is_one_line_of_bounded_length() -> None:
    answer = Status(WAIT, (Problem("taken", "ps/0", "a\n\x1b[2Jb" + "c" * 10_000),))
    (problem,) = Status.decode(carry(answer.encode())).problems
    assert problem.text.startswith("a??[2Jbccc") and len(problem.text) == 400


@pytest.mark.parametrize(
    "message",
    [
        None,
        "worker/0",
        {},
        ["worker/0", NONCE, True],
        ["worker/0", NONCE, True, "1", 0],
        ["worker/0", NONCE, 1, "1"],
        [["worker/0"], NONCE, True, "1"],
        ["boss/0", NONCE, True, "1"],
        ["worker/-1", NONCE, True, "1"],
        ["worker/1234567", NONCE, True, "1"],
        ["worker/\u0663", NONCE, True, "1"],
        ["worker/1\n", NONCE, True, "1"],
        ["worker/1", NONCE[1:], True, "1"],
        ["worker/1", "g" * 16, True, "1"],
        ["worker/1", 0, True, "1"],
        ["worker/1", NONCE, True, 1],
        ["worker/1", NONCE, True, ""],
        ["worker/1", NONCE, True, "1\n"],
        ["worker/1", NONCE, True, "1" * 41],
    ],
    ids=repr,
)
def test_what_is_not_exactly_a_hello_is_none(message: Any) -> None:
    assert Hello.decode(message) is None


BAD_PROBLEMS: list[Any] = [
    None,
    "taken",
    [None],
    [["taken", "ps/0"]],
    [["taken", "ps/0", "text", 0]],
    [["broken", "ps/0", "text"]],
    [[["taken"], "ps/0", "text"]],
    [["taken", "ps/zero", "text"]],
    [["taken", 0, "text"]],
    [["taken", "ps/0", 0]],
    [["taken", "ps/0", "text"]] * 9,
]


@pytest.mark.parametrize("problems", BAD_PROBLEMS, ids=lambda given: repr(given)[:30])
def test_what_is_not_exactly_a_list_of_problems_is_refused(problems: Any) -> None:
    with pytest.raises(ValueError, match="not "):
        Status.decode([WAIT, problems, 0])


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        [WAIT, []],
        [WAIT, [], 0, 0],
        ["Go", [], 0],
        [GO, [], -1],
        [GO, [], 10**9],
        [[GO], [], 0],
        [GO, [], ""],
        {"state": GO},
    ],
    ids=repr,
)
def test_what_is_not_exactly_a_status_is_refused(message: Any) -> None:
    with pytest.raises(ValueError, match="not "):
        Status.decode(message)


def test_http2_is_known_by_its_first_frame() -> None:
    assert is_http2(b"\x00\x00\x18\x04\x00\x00\x00\x00\x00" + b"\x00" * 24)
    assert not is_http2(b"\x00\x00\x18\x04\x00\x00\x00\x00")
    assert not is_http2(b"\x00\x00\x18\x04\x00\x00\x00\x00\x01")  # On another stream.
    assert not is_http2(b"\x00\x00\x18\x06\x00\x00\x00\x00\x00")  # A ping.
    assert not is_http2(b"HTTP/1.1 400 Bad Request\r\n")
