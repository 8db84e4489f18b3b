"""Interprets the end of a task: its exit code, which end was the cause, and what is started again.

A task's own exit code is passed on. A task that was killed by a signal is worth
another try, so it counts as 138, "a peer was lost", SIGTERM too: a task that
saves at SIGTERM ends with 143 by itself. From 128 on, starting again may help.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.errors import EXIT_PEER_LOST

_LONGEST_DELAY = 30.0
# A run that lasted this long was no failure to start: the next delay is short again.
_STEADY_SECONDS = 30.0


@dataclass(frozen=True)
class Exit:
    """The end of one task.

    Attributes:
        task: Its name.
        code: Its exit code, or minus the number of the signal that killed it.
        at: The time, in seconds of the monotonic clock.
        note: A description to use instead of the code, where one is known.
    """

    task: str
    code: int
    at: float = 0.0
    note: str = ""

    @classmethod
    def from_status(cls, task: str, status: int, at: float) -> Exit:
        """Reads a status that `waitpid` returned."""
        return cls(task, os.waitstatus_to_exitcode(status), at)

    @property
    def failed(self) -> bool:
        """Returns whether the task ended with a code other than 0."""
        return self.code != 0

    @property
    def exit_code(self) -> int:
        """The exit code of the launcher if this was the cause."""
        return self.code if self.code >= 0 else EXIT_PEER_LOST

    @property
    def retryable(self) -> bool:
        """Returns whether starting again may help."""
        return self.exit_code >= 128

    @property
    def complains(self) -> bool:
        """Returns whether the task only reports that another one was lost."""
        return self.code == EXIT_PEER_LOST and not self.note

    def __str__(self) -> str:
        if self.note:
            return self.note
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return f"killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"killed by signal {-self.code}"


def root_cause(exits: Sequence[Exit]) -> Exit | None:
    """Returns the first failure, ignoring tasks that only lost a peer where others failed too."""
    failures = sorted((e for e in exits if e.failed), key=lambda e: e.at)
    causes = [e for e in failures if not e.complains]
    return next(iter(causes or failures), None)


class Restarts:
    """The number of restarts so far, and the delay before the next one.

    Args:
        most: The number of restarts allowed, of all tasks together.
        first_delay: Seconds before the first restart; doubled from one to the next.
    """

    def __init__(self, most: int, first_delay: float) -> None:
        self.count = 0
        self._most = most
        self._first_delay = first_delay
        self._doubled = 0

    def allow(self, end: Exit) -> bool:
        """Returns whether a task that ended like this may be started again."""
        return end.retryable and self.count < self._most

    def next_delay(self, lasted: float, worked: bool) -> float:
        """Counts a restart; returns the seconds to wait before it.

        Args:
            lasted: The duration of the failed run, in seconds.
            worked: Whether it is known to have done some of its work.
        """
        self.count += 1
        if worked or lasted >= _STEADY_SECONDS:
            self._doubled = 0
        delay = min(self._first_delay * 2**self._doubled, _LONGEST_DELAY)
        self._doubled = min(self._doubled + 1, 16)
        return delay

    def __str__(self) -> str:
        return f"restart {self.count} of {self._most}"
