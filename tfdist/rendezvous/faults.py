"""Keeps the faults that a task sees in a meeting, until they are over."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tfdist.rendezvous.messages import FAULTS, HOPELESS, Problem

_FORGET_SECONDS = 5.0  # after which a fault that was not seen again is forgotten
# After which a fault that stands ends the meeting early. A job that was asked to end may still be
# saving, and has its ports, when the one that takes its place begins.
_HOPELESS_SECONDS = 10.0
TAKEN_SECONDS = 120.0


@dataclass
class _Fault:
    first: float
    last: float
    text: str


class Faults:
    """The current faults, by their kind and the task that has them."""

    def __init__(self) -> None:
        self._faults: dict[tuple[str, str], _Fault] = {}

    def __bool__(self) -> bool:
        self._forget()
        return bool(self._faults)

    def see(self, kind: str, task: str, text: str) -> None:
        """Notes a fault, seen now."""
        now = time.monotonic()
        fault = self._faults.setdefault((kind, task), _Fault(now, now, text))
        fault.last, fault.text = now, text

    def clear(self, kind: str, task: str) -> None:
        """Removes a fault that is over."""
        self._faults.pop((kind, task), None)

    def stands(self) -> bool:
        """Returns whether a fault has lasted so long that waiting is useless.

        It has to last for a while: tasks that start a little later must see it too, and
        the remains of an ending job go away by themselves.
        """
        self._forget()
        return any(
            fault.last - fault.first > (_HOPELESS_SECONDS if kind in HOPELESS else TAKEN_SECONDS)
            for (kind, _), fault in self._faults.items()
        )

    def gravest(self) -> dict[str, Problem]:
        """Returns the most serious fault of each task that has one."""
        self._forget()
        found: dict[str, Problem] = {}
        for kind, task in sorted(self._faults, key=lambda key: FAULTS.index(key[0])):
            found.setdefault(task, Problem(kind, task, self._faults[kind, task].text))
        return found

    def _forget(self) -> None:
        now = time.monotonic()
        for key, fault in list(self._faults.items()):
            if now - fault.last > _FORGET_SECONDS:
                del self._faults[key]
