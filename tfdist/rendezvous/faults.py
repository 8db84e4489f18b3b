"""Collects the faults of a meeting, whether a task sees them itself or hears of them."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from tfdist.rendezvous.messages import Hello

# The most serious first. Starting again does not help against the hopeless ones.
HOPELESS = ("duplicate", "foreign", "misplaced")
KINDS = (*HOPELESS, "taken")

_FORGET_SECONDS = 5.0  # after which a fault that was not seen again is forgiven
_HOPELESS_SECONDS = 10.0  # after which a fault that stands ends the meeting early

_TOLD = {
    "foreign": "{name} belongs to another cluster, job or secret",
    "duplicate": "two processes are {name}",
    "misplaced": "the address of {name} is that of another task",
    "taken": "the port of {name} is taken by another program",
}


@dataclass
class _Fault:
    first: float
    last: float
    text: str
    teller: str  # the task that saw it, empty where that is this one


class Faults:
    """The current faults, by their kind and the task that has them."""

    def __init__(self, tasks: Collection[str]) -> None:
        self._tasks = tasks
        self._faults: dict[tuple[str, str], _Fault] = {}

    def __bool__(self) -> bool:
        self._forget()
        return bool(self._faults)

    def see(self, kind: str, task: str, text: str, teller: str = "") -> None:
        """Notes a fault, seen now."""
        now = time.monotonic()
        fault = self._faults.setdefault((kind, task), _Fault(now, now, text, teller))
        fault.last = now
        if not teller:  # A fault that this task sees itself counts for more.
            fault.text, fault.teller = text, teller

    def clear(self, kind: str, task: str) -> None:
        """Removes a fault that is over."""
        self._faults.pop((kind, task), None)

    def hear(self, hello: Hello) -> None:
        """Adds the faults that another task sees, and drops those it no longer sees."""
        for key, fault in list(self._faults.items()):
            if fault.teller == hello.task and key not in hello.faults:
                del self._faults[key]
        for kind, task in hello.faults:
            if task in self._tasks:
                text = f"{_TOLD[kind].format(name=task)} (says {hello.task})"
                self.see(kind, task, text, teller=hello.task)

    def own(self) -> tuple[tuple[str, str], ...]:
        """Returns kind and task of the faults that this task sees itself."""
        self._forget()
        return tuple(key for key, fault in self._faults.items() if not fault.teller)

    def stands(self) -> bool:
        """Returns whether a permanent fault has lasted so long that waiting is useless.

        It has to last for a while: tasks that start a little later must see it too, and
        the remains of an ending job go away by themselves.
        """
        self._forget()
        return any(
            kind in HOPELESS and fault.last - fault.first > _HOPELESS_SECONDS
            for (kind, _), fault in self._faults.items()
        )

    def gravest(self) -> dict[str, tuple[str, str]]:
        """Returns kind and text of the most serious fault of each task that has one."""
        found: dict[str, tuple[str, str]] = {}
        for kind in KINDS:
            for (its_kind, task), fault in self._faults.items():
                if its_kind == kind:
                    found.setdefault(task, (kind, fault.text))
        return found

    def _forget(self) -> None:
        now = time.monotonic()
        for key, fault in list(self._faults.items()):
            if now - fault.last > _FORGET_SECONDS:
                del self._faults[key]
