"""What a task's end means: its words, its exit code, and which end was the cause.

A task's own exit code is handed on. One that was killed by a signal is worth
another try, so it counts as 138, "a peer was lost"; SIGTERM is 143, as a task
that saved before it ended would say itself. From 128 on, trying again may help.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.errors import EXIT_PEER_LOST, EXIT_PREEMPTED


@dataclass(frozen=True)
class Exit:
    """How one task ended.

    Attributes:
        task: its name.
        code: its exit code, or minus the number of the signal that killed it.
        at: when, in seconds of the monotonic clock.
        note: what to say instead of the code, where there is more to say.
    """

    task: str
    code: int
    at: float = 0.0
    note: str = ""

    @classmethod
    def from_status(cls, task: str, status: int, at: float) -> Exit:
        """Reads a status as `waitpid` has it."""
        return cls(task, os.waitstatus_to_exitcode(status), at)

    @property
    def failed(self) -> bool:
        """Whether it ended other than with 0."""
        return self.code != 0

    @property
    def exit_code(self) -> int:
        """The code that a launcher ends with when this was the cause."""
        if self.code >= 0:
            return self.code
        return EXIT_PREEMPTED if self.code == -signal.SIGTERM else EXIT_PEER_LOST

    @property
    def retryable(self) -> bool:
        """Whether starting again may help."""
        return self.exit_code >= 128

    @property
    def complains(self) -> bool:
        """Whether it only says that some other task was lost."""
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
    """Returns the failure that came first, passing over those that name another one."""
    failures = sorted((e for e in exits if e.failed), key=lambda e: e.at)
    causes = [e for e in failures if not e.complains]
    return next(iter(causes or failures), None)
