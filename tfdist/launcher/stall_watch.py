"""Watches the heartbeats of running tasks, for stalls and for step times."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.launcher import stacks, stalls
from tfdist.launcher.process import TaskProcess
from tfdist.launcher.stalls import TaskStatus
from tfdist.launcher.steps import StepTimes
from tfdist.runtime import heartbeat
from tfdist.runtime.timeouts import SuspendAwareClock

# Seconds for stacks to arrive through the pipe before they are evaluated.
_STACK_SECONDS = 0.8
_WORK = ("serving", "training", "evaluating", "predicting", "saving", "done")


@dataclass(frozen=True)
class Stall:
    """A task that runs but makes no progress.

    Attributes:
        task: Its name.
        text: A description of the stall, as a clause about the task.
    """

    task: str
    text: str


@dataclass
class _Seen:
    """The observations of one run of one task."""

    process: TaskProcess
    beat: heartbeat.Beat | None = None
    idle: float = 0.0
    stopped: float = 0.0
    asked: bool = False


class StallWatch:
    """Checks heartbeats for stalled tasks, and samples step times.

    Args:
        limit: The seconds without progress after which a task has stalled; 0.0 for never.
    """

    def __init__(self, limit: float) -> None:
        self.steps = StepTimes()
        self._limit = limit
        self._folder = _private_folder()
        self._seen: dict[str, _Seen] = {}
        self._clock = SuspendAwareClock()
        self._judge_at: float | None = None

    def close(self) -> None:
        """Removes the heartbeats."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def path(self, task: str) -> str:
        """Returns the file for a task's heartbeat; "" where nothing can be written."""
        return "" if self._folder is None else str(self._folder / task.replace("/", "-"))

    @property
    def is_blind(self) -> bool:
        """Whether tasks cannot write heartbeats, so that only the ends of processes are seen."""
        return self._folder is None

    def forget(self, task: str) -> None:
        """Removes the files of an earlier run of the task, before it is started."""
        for path in heartbeat.files(self.path(task)) if self._folder else ():
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._seen.pop(task, None)
        self._be_patient()

    def has_worked(self, task: str) -> bool:
        """Returns whether the latest run of a task has begun its actual work."""
        beat = heartbeat.read(self.path(task))
        return beat is not None and beat.phase in _WORK

    def look(self, running: Mapping[str, TaskProcess], now: float) -> list[Stall]:
        """Checks all tasks; returns those that have stalled."""
        passed = self._clock.passed()
        for name, process in running.items():
            self._take_in(name, process, passed)
        if not self._limit or self.is_blind:
            return []
        late = [
            group
            for group in self._groups(running)
            if stalls.overdue([self._status(name) for name in group], self._limit)
        ]
        if not late:
            self._judge_at = None
            return []
        if self._judge_at is None:
            self._judge_at = now + _STACK_SECONDS
            for group in late:
                self._ask(group)
        if now < self._judge_at:
            return []
        self._judge_at = None
        found = [self._judge(group) for group in late]
        self._be_patient()
        return found

    def stopped(self, running: Mapping[str, TaskProcess]) -> list[Stall]:
        """Returns the tasks whose process was stopped at the last check, for however long."""
        statuses = [self._status(name) for name in running if name in self._seen]
        return [Stall(s.task, stalls.describe(s, statuses)) for s in statuses if s.stopped]

    def next_time(self) -> float | None:
        """Returns the latest time for the next check, if it is sooner than usual."""
        return self._judge_at

    def _take_in(self, name: str, process: TaskProcess, passed: float) -> None:
        seen = self._seen.get(name)
        if seen is None or seen.process is not process:
            seen = self._seen[name] = _Seen(process)
        beat = heartbeat.read(self.path(name))
        seen.idle += passed
        if beat is not None and beat != seen.beat:
            seen.idle, seen.asked = 0.0, False
            self.steps.take(name, beat)
        seen.beat = beat or seen.beat
        pid = beat.pid if beat is not None else process.pid
        stopped = pid is not None and stacks.is_stopped(pid)
        seen.stopped = seen.stopped + passed if stopped else 0.0

    def _groups(self, running: Mapping[str, TaskProcess]) -> list[list[str]]:
        """Groups the running tasks: those that may wait for each other are in one group."""
        alone = [[name] for name in running if name.startswith("evaluator/")]
        group = [name for name in running if not name.startswith("evaluator/")]
        return alone + ([group] if group else [])

    def _be_patient(self) -> None:
        """Restarts the time limit of all tasks, which may have waited for an event just handled."""
        for seen in self._seen.values():
            seen.idle = 0.0

    def _status(self, name: str) -> TaskStatus:
        seen = self._seen[name]
        at = stacks.main_thread(seen.process.output.recent) if seen.asked else None
        return TaskStatus(name, seen.beat, seen.idle, seen.stopped, at)

    def _ask(self, group: Sequence[str]) -> None:
        """Asks tasks for their stacks, which they print with their other output."""
        for name in group:
            seen = self._seen[name]
            seen.process.output.recent.clear()
            if seen.beat is not None and not seen.stopped:
                seen.asked = stacks.ask(seen.beat.pid, self.path(name))

    def _judge(self, group: Sequence[str]) -> Stall:
        statuses = [self._status(name) for name in group]
        status = stalls.culprit(statuses)
        text = stalls.describe(status, statuses)
        if not status.stopped and status.at is None:
            text += "; it printed no stack"
        return Stall(status.task, text)


def _private_folder() -> Path | None:
    """Makes a folder that only this user may enter, under TMPDIR; None where that cannot be."""
    try:
        return Path(tempfile.mkdtemp(prefix="tfdist-heartbeats-"))
    except OSError:
        return None
