"""Describes the replicas that a process holds, and its rows of a global batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfdist.partition import part


@dataclass(frozen=True)
class ReplicaLayout:
    """The replicas that this process holds, among those of all processes.

    Attributes:
        worker: This worker's index.
        workers: The number of workers.
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

    def own_rows(self, rows: Any) -> tuple[Any, Any]:
        """Returns the begin and end of this worker's part of a global batch of `rows` rows."""
        return part(rows, self.replicas, self.first, self.local_replicas)
