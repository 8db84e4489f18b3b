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
# Where a main thread may wait for a peer.
_COLLECTIVES = ("/tensorflow/", "/tfdist/collectives/ring/")


@dataclass(frozen=True)
class Sign:
    """The observed state of one running task.

    Attributes:
        task: its name.
        beat: its latest heartbeat; None if it never wrote one.
        idle: the seconds since its heartbeat last changed.
        stopped: the seconds since its process was stopped; 0.0 if it is not.
        at: path, line and function where its main thread is; None where that is not known.
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
        """Returns whether its main thread is known to be outside TensorFlow and the ring."""
        if self.at is None:
            return False
        path = self.at[0].replace(os.sep, "/")
        return not any(folder in path for folder in _COLLECTIVES)

    @property
    def reading(self) -> bool:
        """Returns whether its main thread is known to wait for input."""
        return self.at is not None and self.at[2].startswith("iterator_get_next")

    def patience(self, limit: float) -> float:
        """Returns the seconds for which its heartbeat may stay unchanged."""
        return patience(self.phase, limit)


def overdue(signs: Sequence[Sign], limit: float) -> bool:
    """Returns whether some task has shown no progress for too long, whatever the cause.

    Args:
        signs: of tasks that wait for each other.
        limit: the stall limit, in seconds.
    """
    if any(sign.stopped >= limit for sign in signs):
        return True
    # While one does something that may take long, the others may wait for it as long.
    waited_for = [s for s in signs if s.phase not in UNTIMED_PHASES and not s.fed] or signs
    return any(sign.idle >= sign.patience(limit) for sign in waited_for)


def culprit(signs: Sequence[Sign]) -> Sign:
    """Returns the task that the others wait for.

    Args:
        signs: of tasks that wait for each other, of which one is overdue.
    """
    stopped = [sign for sign in signs if sign.stopped]
    if stopped:
        return max(stopped, key=lambda sign: sign.stopped)
    timed = [sign for sign in signs if sign.phase not in UNTIMED_PHASES]
    # TensorFlow and the ring are where tasks wait for each other; who is elsewhere keeps
    # them waiting.
    elsewhere = [sign for sign in timed if sign.outside or sign.reading]
    if elsewhere and len(elsewhere) < len(timed):
        return max(elsewhere, key=lambda sign: sign.idle)
    unfed = [sign for sign in timed if not sign.fed]
    # A collective outside of a step, such as the start of an epoch, also waits for tasks that
    # are not in tfdist's hands: still before training, or after it.
    away = [sign for sign in signs if sign.phase in ("", "done")]
    if away and len(unfed) == len(timed) and all(s.phase != "saving" for s in timed):
        return max(away, key=lambda sign: sign.idle)
    if len(unfed) == 1:
        return unfed[0]
    return min(unfed or timed or signs, key=_last_seen)


def describe(sign: Sign, signs: Sequence[Sign]) -> str:
    """Describes, as a clause, how a task has stalled and which tasks wait for it.

    Args:
        sign: of the task.
        signs: of it and of those that step together with it.
    """
    others = [s for s in signs if s is not sign and s.phase not in UNTIMED_PHASES]
    waiting = [s.task for s in others]
    text = f"stalled: no progress for {sign.stopped or sign.idle:.0f} s"
    beat = sign.beat
    if beat is None:
        text += "; it has not begun to train"
    else:
        text += f", {beat.phase}"
        if beat.phase in ("tracing", "training", "evaluating", "saving"):
            text += f" in epoch {beat.epoch + 1} after step {beat.step}"
    if sign.stopped:
        text += "; its process is stopped (SIGSTOP) and prints no stack"
    elif sign.outside:
        assert sign.at is not None
        text += f"; it is in {sign.at[2]} ({os.path.basename(sign.at[0])} line {sign.at[1]})"
    elif (
        beat is not None and sign.phase in _STEPPING and (sign.reading or _is_hungry(beat, others))
    ):
        text += "; it waits for its input"
    if waiting:
        named = ", ".join(waiting[:4]) + (f" and {len(waiting) - 4} more" if waiting[4:] else "")
        text += f"; {named} {'wait' if len(waiting) > 1 else 'waits'} for it"
    return text


def _is_hungry(beat: Beat, others: Sequence[Sign]) -> bool:
    """Returns whether a task's step has no input while those of others do."""
    fed = [s.beat.fed for s in others if s.beat is not None]
    return 0.0 < beat.fed < min(fed, default=0.0) or 0.0 < beat.fed <= beat.time


def _last_seen(sign: Sign) -> tuple[float, float]:
    """Returns the time when a task last began a step, by its input, else when it last wrote."""
    if sign.beat is None:
        return (0.0, 0.0)
    return (sign.beat.fed or sign.beat.time, sign.beat.time)
