"""Finds the task, if any, that has stalled, from the heartbeats.

In a synchronous job all tasks stop together, because the healthy ones wait for the stalled
one. So the question is not which task has stopped, but which one the others wait for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.runtime.heartbeat import Beat
from tfdist.runtime.timeouts import UNTIMED_PHASES, patience

_STEPPING = ("tracing", "training", "evaluating")  # phases whose steps say when they are fed
# Where a main thread may wait for a peer, besides a transport that records that it waits.
_TENSORFLOW = "/tensorflow/"


@dataclass(frozen=True)
class TaskStatus:
    """The observed state of one running task.

    Attributes:
        task: Its name.
        beat: Its latest heartbeat; None if it never wrote one.
        idle: The seconds since its heartbeat last changed.
        stopped: The seconds since its process was stopped; 0.0 if it is not.
        at: Path, line and function where its main thread is; None where that is not known.
    """

    task: str
    beat: Beat | None
    idle: float = 0.0
    stopped: float = 0.0
    at: tuple[str, int, str] | None = None

    @property
    def phase(self) -> str:
        """The phase in its heartbeat; "" if it never wrote one."""
        return self.beat.phase if self.beat is not None else ""

    @property
    def fed(self) -> bool:
        """Returns whether its step has its input, so that it computes or waits for its peers."""
        beat = self.beat
        return beat is not None and self.phase in _STEPPING and beat.fed > beat.time

    @property
    def outside(self) -> bool:
        """Returns whether its main thread is known not to be in TensorFlow and not in the ring."""
        if self.at is None or (self.beat is not None and self.beat.waits):
            return False
        return _TENSORFLOW not in self.at[0].replace(os.sep, "/")

    @property
    def reading(self) -> bool:
        """Returns whether its main thread is known to wait for input."""
        return self.at is not None and self.at[2].startswith("iterator_get_next")

    def patience(self, limit: float) -> float:
        """Returns the seconds for which its heartbeat may stay unchanged."""
        return patience(self.phase, limit)


def overdue(statuses: Sequence[TaskStatus], limit: float) -> bool:
    """Returns whether some task has shown no progress for too long, whatever the cause.

    Args:
        statuses: Of tasks that wait for each other.
        limit: The stall limit, in seconds.
    """
    if any(status.stopped >= limit for status in statuses):
        return True
    # While one does something that may take long, the others may wait for it as long.
    waited_for = [s for s in statuses if s.phase not in UNTIMED_PHASES and not s.fed] or statuses
    return any(status.idle >= status.patience(limit) for status in waited_for)


def culprit(statuses: Sequence[TaskStatus]) -> TaskStatus:
    """Returns the task that the others wait for.

    Args:
        statuses: Of tasks that wait for each other, of which one is overdue.
    """
    stopped = [status for status in statuses if status.stopped]
    if stopped:
        return max(stopped, key=lambda status: status.stopped)
    timed = [status for status in statuses if status.phase not in UNTIMED_PHASES]
    # TensorFlow and the ring are where tasks wait for each other; who is elsewhere keeps
    # them waiting.
    elsewhere = [status for status in timed if status.outside or status.reading]
    if elsewhere and len(elsewhere) < len(timed):
        return max(elsewhere, key=lambda status: status.idle)
    unfed = [status for status in timed if not status.fed]
    # A collective outside of a step, such as the start of an epoch, also waits for tasks that
    # are not in tfdist's hands: still before training, or after it.
    away = [status for status in statuses if status.phase in ("", "done")]
    if away and len(unfed) == len(timed) and all(s.phase != "saving" for s in timed):
        return max(away, key=lambda status: status.idle)
    if len(unfed) == 1:
        return unfed[0]
    return min(unfed or timed or statuses, key=_last_seen)


def describe(status: TaskStatus, statuses: Sequence[TaskStatus]) -> str:
    """Describes, as a clause, how a task has stalled and which tasks wait for it.

    Args:
        status: Of the task.
        statuses: Of it and of those that step together with it.
    """
    others = [s for s in statuses if s is not status and s.phase not in UNTIMED_PHASES]
    waiting = [s.task for s in others]
    text = f"stalled: no progress for {status.stopped or status.idle:.0f} s"
    beat = status.beat
    if beat is None:
        text += "; it has not begun to train"
    else:
        text += f", {beat.phase}"
        if beat.phase in ("tracing", "training", "evaluating", "saving"):
            text += f" in epoch {beat.epoch + 1} after step {beat.step}"
    if status.stopped:
        text += "; its process is stopped (SIGSTOP) and prints no stack"
    elif status.outside:
        assert status.at is not None
        text += f"; it is in {status.at[2]} ({os.path.basename(status.at[0])} line {status.at[1]})"
    elif (
        beat is not None
        and status.phase in _STEPPING
        and (status.reading or _is_hungry(beat, others))
    ):
        text += "; it waits for its input"
    if waiting:
        named = ", ".join(waiting[:4]) + (f" and {len(waiting) - 4} more" if waiting[4:] else "")
        text += f"; {named} {'wait' if len(waiting) > 1 else 'waits'} for it"
    return text


def _is_hungry(beat: Beat, others: Sequence[TaskStatus]) -> bool:
    """Returns whether a task's step has no input while those of others do."""
    fed = [s.beat.fed for s in others if s.beat is not None]
    return 0.0 < beat.fed < min(fed, default=0.0) or 0.0 < beat.fed <= beat.time


def _last_seen(status: TaskStatus) -> tuple[float, float]:
    """Returns the time when a task last began a step, by its input, else when it last wrote."""
    if status.beat is None:
        return (0.0, 0.0)
    return (status.beat.fed or status.beat.time, status.beat.time)
