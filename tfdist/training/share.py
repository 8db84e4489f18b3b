"""Which of all replicas a process holds, and so which rows of a global batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Share:
    """Which replicas of how many this process holds.

    Attributes:
        worker: This worker's index.
        workers: How many workers there are.
        local_replicas: Replicas in this process.
        replicas: Replicas in all processes.
    """

    worker: int = 0
    workers: int = 1
    local_replicas: int = 1
    replicas: int = 1

    @property
    def first(self) -> int:
        """The number of this process's first replica."""
        return self.worker * self.local_replicas

    def cut(self, rows: Any) -> tuple[Any, Any]:
        """Where this worker's part of `rows` rows of a global batch begins and ends."""
        return (
            self.first * rows // self.replicas,
            (self.first + self.local_replicas) * rows // self.replicas,
        )
