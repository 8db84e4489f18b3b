"""Interprets the end of a task: its description, its exit code, and which end was the cause.

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


@dataclass(frozen=True)
class Exit:
    """The end of one task.

    Attributes:
        task: its name.
        code: its exit code, or minus the number of the signal that killed it.
        at: the time, in seconds of the monotonic clock.
        note: a description to use instead of the code, where one is known.
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
