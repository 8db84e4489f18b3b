"""Samples the tasks' step times from their heartbeats, and reports them."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping

from tfdist.runtime.heartbeat import Beat

_KEEP = 2000  # samples a task; of a long run, the last ones


class StepTimes:
    """The step times of all tasks, from their heartbeats."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[float]] = {}
        self._inputs: dict[str, deque[float]] = {}
        self._fed: dict[str, float] = {}
        self._tracing: set[str] = set()

    def take(self, task: str, beat: Beat) -> None:
        """Records a new heartbeat."""
        if beat.phase != "training":
            self._tracing |= {task} if beat.phase == "tracing" else set()
            return
        if task in self._tracing:  # This step was compiled first.
            self._tracing.discard(task)
        elif beat.step_seconds > 0:
            self._samples.setdefault(task, deque(maxlen=_KEEP)).append(beat.step_seconds)
        # Of steps of many a second, most beats are left out, and the difference means nothing.
        if beat.fed > beat.time and beat.fed != self._fed.get(task):
            self._fed[task] = beat.fed
            self._inputs.setdefault(task, deque(maxlen=_KEEP)).append(beat.fed - beat.time)

    def medians(self) -> Mapping[str, float]:
        """Returns the median step time of each task that has made steps, in seconds."""
        return {task: statistics.median(values) for task, values in self._samples.items()}

    def report(self) -> str:
        """Names the slowest task and gives all medians; "" where no steps were made.

        In a synchronous job all steps last as long as the slowest task's. Where they are
        equal, the slowest task is the one that waits longest for its own input.
        """
        medians = self.medians()
        if not medians:
            return ""
        parts = []
        for task, seconds in medians.items():
            text = f"{task} {_seconds(seconds)}"
            if len(self._inputs.get(task, ())) >= 3:
                text += f" (input {_seconds(statistics.median(self._inputs[task]))})"
            parts.append(text)
        line = f"median step: {', '.join(parts)}"
        if len(medians) > 1:
            line += f"; slowest: {self.slowest()}"
        return line

    def slowest(self) -> str:
        """Returns the task with the longest median step; of equal ones, the slowest input."""
        medians = self.medians()
        longest = max(medians.values())
        alike = [task for task, seconds in medians.items() if seconds >= 0.95 * longest]
        inputs = {
            task: statistics.median(self._inputs[task]) if self._inputs.get(task) else 0.0
            for task in alike
        }
        return max(alike, key=lambda task: (inputs[task], medians[task]))


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
