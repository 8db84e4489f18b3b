"""Runs the tasks of a job once: starts all of them, watches them, and ends them together."""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tfdist.errors import EXIT_PREEMPTED
from tfdist.launcher.exits import Exit, Restarts, root_cause
from tfdist.launcher.machine import TaskResources
from tfdist.launcher.outlet import LogFile, Outlet
from tfdist.launcher.output import TaskOutput
from tfdist.launcher.process import TaskProcess
from tfdist.launcher.signals import Signals
from tfdist.launcher.stall_watch import Stall, StallWatch

# The number of the run that a task is part of.
ATTEMPT_VARIABLE = "TFDIST_ATTEMPT"

# A task that reports "I lost a peer" may do so before the peer is seen to have ended: the least
# time that the others then have to end by themselves, whatever the grace.
_SETTLE_SECONDS = 2.0
_TICK_SECONDS = 0.5
_AGAIN_SECONDS = 1.0
_MAX_NAMED = 8


@dataclass(frozen=True)
class TaskPlan:
    """The settings to start one task with.

    Attributes:
        name: Its name.
        command: The program and its arguments.
        env: Its environment, without the variables that depend on the run.
        share: Its part of the machine.
        log: Receives a copy of its output.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    share: TaskResources
    log: LogFile | None = None

    @property
    def role(self) -> str:
        """Its role in the cluster."""
        return self.name.partition("/")[0]

    @property
    def index(self) -> int:
        """Its number among those of its role."""
        return int(self.name.partition("/")[2])


@dataclass(frozen=True)
class RunContext:
    """The objects that a run shares with those before and after it.

    Attributes:
        selector: Waits for the tasks and for signals.
        signals: Those that this process received.
        restarts: Counts them.
        watch: Checks the tasks' heartbeats.
        stream: Receives the tasks' lines.
        report: Receives the launcher's own.
        say: Prints one of these.
        grace: Seconds a task has between SIGTERM and SIGKILL, and to end by itself where another
            one complains of a lost peer.
    """

    selector: selectors.BaseSelector
    signals: Signals
    restarts: Restarts
    watch: StallWatch
    stream: Outlet
    report: Outlet
    say: Callable[[str], None]
    grace: float


@dataclass
class _Agenda:
    """The times of the next actions, in seconds of the monotonic clock."""

    starts: list[tuple[float, str]] = field(default_factory=list)
    settle: float | None = None  # take the failures seen so far as all
    terminate: float | None = None  # ask the rest to end
    kill: float | None = None  # kill it; set once it was asked

    def next(self) -> list[float]:
        times = [t for t in (self.settle, self.terminate, self.kill) if t is not None]
        return times + [at for at, _ in self.starts]


class GroupRun:
    """Runs all tasks until none is left.

    Args:
        plans: The tasks.
        cluster: Their addresses, by role.
        attempt: The number of this run, from 1.
        context: The objects that it shares with other runs.
    """

    def __init__(
        self,
        plans: Sequence[TaskPlan],
        cluster: Mapping[str, Sequence[str]],
        attempt: int,
        context: RunContext,
    ) -> None:
        self._plans = {plan.name: plan for plan in plans}
        self._cluster = cluster
        self._attempt = attempt
        self._context = context
        self._width = max(len(name) for name in self._plans)
        self._has_ps = "ps" in cluster
        self._running: dict[str, TaskProcess] = {}
        self._exits: dict[str, Exit] = {}
        self._failures: list[Exit] = []
        self._agenda = _Agenda(starts=[(0.0, name) for name in self._plans])
        self._begun = False  # whether all tasks were started once
        self._done = False  # whether the job has done its work, whoever still runs
        self._heard = 0  # signals that were acted upon
        self.last: dict[str, TaskProcess] = {}  # the latest run of each task that has ended

    def run(self) -> Exit | None:
        """Runs to the end; returns the cause where the job failed."""
        try:
            while self._turn():
                pass
        finally:
            for name in list(self._running):
                self._forget(name)
        if self._done:
            return None
        signals = self._context.signals.ending
        if signals and not self._failures:
            return Exit("tfdist", -signals[0], time.monotonic())
        return root_cause(self._failures)

    def unsaved(self) -> list[str]:
        """The tasks that decide about the job and ended otherwise than done or after saving."""
        ends = [(name, self._exits.get(name)) for name in self._deciding()]
        return [
            f"{name} {'was not started' if end is None else end}"
            for name, end in ends
            if end is None or end.code not in (0, EXIT_PREEMPTED)
        ]

    def _turn(self) -> bool:
        """Waits for an event and handles it; returns False once no task is left."""
        now = time.monotonic()
        if self._agenda.kill is None:
            self._start_due(now)
        if not self._running and (not self._agenda.starts or self._agenda.kill is not None):
            return False
        self._context.stream.attend(self._context.selector)
        self._context.report.attend(self._context.selector)
        times = [now + _TICK_SECONDS, *self._agenda.next()]
        look = self._context.watch.next_time()
        ended = self._wait(min([*times, look] if look is not None else times))
        now = time.monotonic()
        self._heed_signals(now)
        if self._undisturbed:
            self._lose(self._context.watch.look(self._running, now))
        for end in ended:
            self._take(end, now)
        self._do_what_is_due(now)
        return True

    @property
    def _undisturbed(self) -> bool:
        """Returns whether the run is not ending yet."""
        return self._agenda.kill is None and not self._context.signals.ending and not self._done

    # The events.

    def _heed_signals(self, now: float) -> None:
        signals = self._context.signals
        if signals.hung_up:
            signals.hung_up = False
            self._context.say(f"SIGHUP: the job continues; to end it: kill {os.getpid()}")
        if signals.report_wanted:
            signals.report_wanted = False
            self._context.say(self._context.watch.steps.report() or "no steps have been made yet")
        if len(signals.ending) <= self._heard:
            return
        if self._heard or len(signals.ending) > 1:  # The second time: at once.
            self._each(TaskProcess.kill)
        elif self._agenda.kill is None:
            self._context.say(f"{signal.Signals(signals.ending[0]).name}: ending all tasks")
            self._agenda.terminate = now
        self._heard = len(signals.ending)

    def _take(self, end: Exit, now: float) -> None:
        """Handles the end of a task."""
        if not end.failed or not self._undisturbed:
            return
        if end.complains:  # Of a task that was stopped, before the stall limit.
            self._lose(self._context.watch.stopped(self._running))
        restarts = self._context.restarts
        alone = self._has_ps and end.task.startswith("worker/") and not self._failures
        if alone and restarts.allow(end):
            delay = restarts.next_delay(
                now - self.last[end.task].started, self._context.watch.has_worked(end.task)
            )
            how = "was ended" if end.note else str(end)  # The note was printed already.
            self._context.say(f"{end.task} {how}; starting it again in {delay:g} s ({restarts})")
            self._agenda.starts.append((now + delay, end.task))
            return
        self._failures.append(end)
        # Whoever has failed for good may take long to end: to upload, say, what it has logged.
        wait = max(_SETTLE_SECONDS, self._context.grace) if end.complains else 0.0
        settle = now + wait
        self._agenda.settle = min(self._agenda.settle or settle, settle)

    def _lose(self, stalls: Sequence[Stall]) -> None:
        """Reports tasks that have stalled, and kills them."""
        for stall in stalls:
            process = self._running[stall.task]
            if not process.given_up:  # All others may complain of it before it has ended.
                self._context.say(f"{stall.task} {stall.text}")
                process.give_up(stall.text)

    def _do_what_is_due(self, now: float) -> None:
        agenda, grace = self._agenda, self._context.grace
        if agenda.settle is not None:
            left = [name for name in self._running if not name.startswith("evaluator/")]
            if now >= agenda.settle or not left:
                self._tell_who_ran_on(left)
                agenda.terminate = now
        if not self._failures and self._undisturbed and self._complete():
            self._done = True
            agenda.terminate = now + grace
        if agenda.terminate is not None and now >= agenda.terminate:
            agenda.settle, agenda.terminate, agenda.kill = None, None, now + grace
            self._each(TaskProcess.terminate)
        if agenda.kill is not None and now >= agenda.kill:
            agenda.kill = now + _AGAIN_SECONDS  # Should one have missed it.
            self._each(TaskProcess.kill)

    def _tell_who_ran_on(self, left: Sequence[str]) -> None:
        """Names the tasks that have not ended although others complain of a lost peer."""
        if left and all(end.complains for end in self._failures):
            named = ", ".join(left[:_MAX_NAMED]) + (" and more" if len(left) > _MAX_NAMED else "")
            have = "has" if len(left) == 1 else "have"
            lost = f"although {self._failures[0].task} has lost a peer"
            self._context.say(f"{named} {have} not ended, {lost}")

    def _complete(self) -> bool:
        """Returns whether the job has done its work, even if some tasks still run."""
        exits = self._exits
        return all(name in exits and not exits[name].failed for name in self._deciding())

    def _deciding(self) -> list[str]:
        """The tasks whose ends are that of the job."""
        roles: tuple[str, ...] = ("chief", "worker")
        if self._has_ps:
            roles = ("chief",) if "chief" in self._cluster else ("worker",)
        deciding = [plan.name for plan in self._plans.values() if plan.role in roles]
        return deciding or list(self._plans)  # Nothing but evaluators.

    # The tasks.

    def _start_due(self, now: float) -> None:
        for start in [s for s in self._agenda.starts if s[0] <= now]:
            self._agenda.starts.remove(start)
            self._start(self._plans[start[1]])
        self._begun = True

    def _start(self, plan: TaskPlan) -> None:
        watch = self._context.watch
        watch.forget(plan.name)
        env = dict(plan.env)
        if self._cluster:  # Else these are machines, whose launchers have tasks.
            task = {"type": plan.role, "index": plan.index}
            env["TF_CONFIG"] = json.dumps({"cluster": self._cluster, "task": task})
        env[ATTEMPT_VARIABLE] = str(self._attempt)
        env["TFDIST_HEARTBEAT"] = watch.path(plan.name)  # Empty where there is none.
        if self._begun:
            # The others are past their meeting: this one must not wait for them there.
            env["TFDIST_REJOIN"] = "1"
        if plan.log is not None and self._context.restarts.count:
            plan.log.write(f"--- started again ({self._context.restarts}) ---\n".encode())
        output = TaskOutput(plan.name, self._width, self._context.stream, plan.log)
        process = TaskProcess(plan.name, plan.command, env, plan.share.cores, output)
        self._running[plan.name] = process
        self._exits.pop(plan.name, None)
        selector = self._context.selector
        selector.register(process.control, selectors.EVENT_READ, (process, "control"))
        selector.register(process.stdout, selectors.EVENT_READ, (process, "stdout"))

    def _wait(self, until: float) -> list[Exit]:
        """Handles the events until a time; returns the tasks that ended."""
        ended: list[Exit] = []
        selector = self._context.selector
        for key, _ in selector.select(max(0.0, until - time.monotonic())):
            if key.data is None:
                self._context.signals.drain()
                continue
            process, source = key.data
            if process.name not in self._running:
                continue
            if source == "stdout":
                if not process.read_output():
                    selector.unregister(process.stdout)
            elif not process.read_control():
                self._forget(process.name)
                ended.append(process.exit)
        return ended

    def _forget(self, name: str) -> None:
        """Releases the resources of a task, killing it if it still runs."""
        process = self._running.pop(name)
        selector = self._context.selector
        for source in (process.control, process.stdout):
            if source.fileno() in selector.get_map():
                selector.unregister(source)
        process.close()
        if process.exit is not None:
            self._exits[name] = process.exit
        self.last[name] = process

    def _each(self, order: Callable[[TaskProcess], None]) -> None:
        for process in self._running.values():
            order(process)


def task_environment(
    common: Mapping[str, str],
    share: TaskResources,
    of_role: Mapping[str, str],
    of_all: Mapping[str, str],
) -> dict[str, str]:
    """Builds a task's environment; more specific variables replace more general ones.

    Args:
        common: The variables that tasks inherit from this process.
        share: The task's part of the machine, whose GPUs replace the common ones.
        of_role: The variables that the job sets for the role.
        of_all: The variables given on the command line.
    """
    env = {**share.env, **common, **of_role}
    if "CUDA_VISIBLE_DEVICES" in share.env:
        env["CUDA_VISIBLE_DEVICES"] = share.env["CUDA_VISIBLE_DEVICES"]
    env |= of_all
    return env
