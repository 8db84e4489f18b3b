"""What tasks tell each other while they meet, and its reading.

A message may come from anyone on the network, so reading checks every field and rejects everything
else. A message counts where the connection has proven it (`signed_connection`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from tfdist import __version__
from tfdist.validation import printable

# The most serious first. Starting again does not help against the hopeless ones.
HOPELESS = ("duplicate", "version", "foreign", "misplaced")
FAULTS = (*HOPELESS, "taken")
MISSING = "missing"
MAX_PROBLEMS = 8

WAIT, LEAVE, GO, END = "wait", "leave", "go", "end"

_NONCE = re.compile(r"[0-9a-f]{16}")
_VERSION = re.compile(r"[0-9A-Za-z.+!_-]{1,40}")
_TASK = re.compile(r"(chief|worker|ps|evaluator)/[0-9]{1,6}", re.ASCII)
_MAX_TEXT = 400


class Problem(NamedTuple):
    """Something that keeps the tasks from starting.

    Attributes:
        kind: One of `FAULTS`, or `MISSING`.
        task: The task that has it.
        text: What it is, as a clause.
    """

    kind: str
    task: str
    text: str


@dataclass(frozen=True)
class Hello:
    """The name of the sender, and its version.

    Attributes:
        task: The sender, such as `worker/0`.
        nonce: Distinguishes two processes that claim to be one task.
        reports: Whether it calls to report to the leader, and not only to ask for a name.
        version: Its version of tfdist.
    """

    task: str
    nonce: str
    reports: bool = False
    version: str = __version__

    def encode(self) -> list[Any]:
        """Returns the message to send."""
        return [self.task, self.nonce, self.reports, self.version]

    @classmethod
    def decode(cls, message: Any) -> Hello | None:
        """Returns what was sent, or None if it is not a hello."""
        if not isinstance(message, list) or list(map(type, message)) != [str, str, bool, str]:
            return None
        hello = cls(*message)
        patterns = {_TASK: hello.task, _NONCE: hello.nonce, _VERSION: hello.version}
        return hello if all(p.fullmatch(text) for p, text in patterns.items()) else None


@dataclass(frozen=True)
class Status:
    """What a task reports to the leader, again and again, and what the leader answers.

    Attributes:
        state: `WAIT`, or `LEAVE` of a task whose time is over: it asks whether it may give up. Of
            the leader `WAIT`, `GO` to start, or `END` where a task may give up or the leader does.
        problems: What is wrong with the task itself; of the leader, what keeps the tasks from
            starting, the most serious first.
        more: How many problems there are beyond those that are sent.
    """

    state: str
    problems: tuple[Problem, ...] = ()
    more: int = 0

    def encode(self) -> list[Any]:
        """Returns the message to send."""
        more = self.more + max(0, len(self.problems) - MAX_PROBLEMS)
        return [self.state, self.problems[:MAX_PROBLEMS], more]

    @classmethod
    def decode(cls, message: Any) -> Status:
        """Returns what was sent.

        Raises:
            ValueError: It is not a status.
        """
        try:
            state, problems, more = message
            found = tuple(Problem(*problem) for problem in problems)
        except (TypeError, ValueError):
            raise ValueError("not a list of fields") from None
        if state not in (WAIT, LEAVE, GO, END) or len(found) > MAX_PROBLEMS:
            raise ValueError("not a status")
        if not isinstance(more, int) or not 0 <= more < 10**6:
            raise ValueError("not a number of problems")
        return cls(state, tuple(map(_checked, found)), more)


def _checked(problem: Problem) -> Problem:
    kind, task, text = problem
    if kind not in (*FAULTS, MISSING) or not isinstance(task, str) or not isinstance(text, str):
        raise ValueError("not a problem")
    if not _TASK.fullmatch(task):
        raise ValueError("not the problem of a task")
    return Problem(kind, task, printable(text[:_MAX_TEXT]))


def is_http2(data: bytes) -> bool:
    """Returns whether an HTTP/2 server sent this, such as TensorFlow's (gRPC).

    It begins with a SETTINGS frame on stream 0, whoever calls (RFC 9113, 3.4 and 6.5).
    """
    return len(data) >= 9 and data[3:9] == b"\x04\x00\x00\x00\x00\x00"
