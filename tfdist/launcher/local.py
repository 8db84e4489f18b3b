"""Runs a job on this machine, again if tasks fail and may be restarted, and reports each run."""

from __future__ import annotations

import contextlib
import math
import resource
import secrets
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tfdist.cluster.secret import VARIABLE as SECRET_VARIABLE
from tfdist.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_PEER_LOST,
    EXIT_PREEMPTED,
    ConfigError,
)
from tfdist.launcher.exits import Exit, Restarts
from tfdist.launcher.group import GroupRun, RunContext, TaskPlan, task_environment
from tfdist.launcher.job import Job
from tfdist.launcher.machine import TaskResources, common_environment, divide, resolve_command
from tfdist.launcher.outlet import LogFile, two_outlets
from tfdist.launcher.signals import Signals
from tfdist.launcher.stall_watch import StallWatch
from tfdist.runtime.timeouts import STALL_VARIABLE
from tfdist.validation import plural, quote

STALL_SECONDS = 1800.0
# The tasks' own limit, in limits of the launcher.
_TASKS_WAIT = 2
_DELIVER_SECONDS = 30.0
_LAST_SECONDS = 1.0  # The same for a job that was stopped.
_MAX_NAMED = 8
# What the launcher has open by itself, and for each task (pipe, socket, log, and at its start).
_DESCRIPTORS = 40
_DESCRIPTORS_A_TASK = 4


@dataclass(frozen=True)
class LaunchOptions:
    """The options of a run.

    Attributes:
        attempt: The number of the first run; above 1 where others were before.
        max_restarts: The number of restarts allowed, of all tasks together.
        restart_delay: Seconds before the first restart; doubled from one to the next.
        grace: Seconds a task has between SIGTERM and SIGKILL.
        stall_timeout: Seconds without progress after which a task is lost; 0.0 for never.
        report: Whether to report step times at the end also where there is one task only.
        log_dir: A directory for a copy of each task's output; None for no copies.
        env: Variables for every task.
        cpus_per_task: See `machine.divide`.
        gpus_per_task: See `machine.divide`.
    """

    attempt: int = 1
    max_restarts: int = 0
    restart_delay: float = 1.0
    grace: float = 10.0
    stall_timeout: float = STALL_SECONDS
    report: bool = False
    log_dir: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cpus_per_task: str = "auto"
    gpus_per_task: str = "auto"


class Supervisor:
    """Runs one job to its end.

    Args:
        job: The job.
        options: Its options.
        stream: Receives the tasks' lines; stdout by default.
        report: Receives the supervisor's own lines; stderr by default.
        before_restart: Waits for what the job needs to start again; returns whether it is there.

    Attributes:
        cause: After `run`, the end that the job failed by; None if it did not, or was stopped.
    """

    def __init__(
        self,
        job: Job,
        options: LaunchOptions,
        *,
        stream: TextIO | None = None,
        report: TextIO | None = None,
        before_restart: Callable[[RunContext], bool] = lambda context: True,
    ) -> None:
        self._job = job
        self._before_restart = before_restart
        self._options = options
        self._stream, self._report = two_outlets(
            sys.stdout if stream is None else stream, sys.stderr if report is None else report
        )
        self.cause: Exit | None = None
        self._said_log = False
        self._names = job.names
        self._shares = self._divide()
        self._restarts = Restarts(options.max_restarts, options.restart_delay)

    def run(self) -> int:
        """Runs the job and returns the exit code of the cause, or 0.

        Raises:
            ConfigError: The command does not exist, or the log directory cannot be written.
                Nothing was started.
        """
        _allow_descriptors(len(self._names))
        with contextlib.ExitStack() as stack:
            plans = self._plan(stack)
            for note in self._job.notes:
                self._say(note)
            self._say(f"starting {plural(len(self._names), self._job.noun)}")
            selector = stack.enter_context(selectors.DefaultSelector())
            signals = stack.enter_context(Signals(selector))
            watch = StallWatch(self._options.stall_timeout)
            stack.callback(watch.close)
            if watch.is_blind:
                self._say(
                    "no folder for temporary files can be written, so a task that makes no "
                    "progress is not seen; set TMPDIR"
                )
            context = RunContext(
                selector=selector,
                signals=signals,
                restarts=self._restarts,
                watch=watch,
                stream=self._stream,
                report=self._report,
                say=self._say,
                grace=self._options.grace,
            )
            code = self._run_again_and_again(plans, context)
            if self._options.report or len(watch.steps.medians()) > 1:
                self._say(watch.steps.report() or "no steps were made")
            self._deliver(context)
            return code

    def _deliver(self, context: RunContext) -> None:
        """Waits for a slow reader of the last lines, until a signal comes or it takes too long."""
        outlets = (self._stream, self._report)
        heard = len(context.signals.ending)
        until = time.monotonic() + (_LAST_SECONDS if heard else _DELIVER_SECONDS)
        while any(outlet.waiting for outlet in outlets) and time.monotonic() < until:
            if len(context.signals.ending) > heard:
                return
            for outlet in outlets:
                outlet.attend(context.selector)
            if context.selector.select(0.1):
                context.signals.drain()

    def _run_again_and_again(self, plans: list[TaskPlan], context: RunContext) -> int:
        attempt = self._options.attempt - 1
        while True:
            attempt += 1
            started = time.monotonic()
            run = GroupRun(plans, self._job.place(), attempt, context)
            cause = run.run()
            if cause is None:
                return EXIT_DONE
            if context.signals.ending:
                return self._interrupted(context.signals, run)
            self._describe(cause, run)
            if not self._restarts.allow(cause):
                self.cause = cause
                return cause.exit_code
            worked = any(context.watch.has_worked(name) for name in self._names)
            delay = self._restarts.next_delay(time.monotonic() - started, worked)
            self._say(f"starting all tasks again in {delay:g} s ({self._restarts})")
            is_ready = pause(delay, context) and self._before_restart(context)
            if context.signals.ending:
                return self._interrupted(context.signals, run)
            if not is_ready:
                self.cause = cause
                return cause.exit_code

    def _interrupted(self, signals: Signals, run: GroupRun) -> int:
        """Returns the exit code of a job that was stopped: 143 only where it has saved."""
        if signals.ending[0] == signal.SIGINT:
            return EXIT_INTERRUPTED
        unsaved = run.unsaved()
        if not unsaved:
            return EXIT_PREEMPTED
        if len(unsaved) > _MAX_NAMED:
            unsaved[_MAX_NAMED:] = [f"and {len(unsaved) - _MAX_NAMED} more"]
        self._say(f"not saved at SIGTERM: {', '.join(unsaved)} (grace {self._options.grace:g} s)")
        return EXIT_PEER_LOST

    def _divide(self) -> dict[str, TaskResources]:
        roles = ("worker",) if "ps" in self._job.addresses else ("chief", "worker")
        computing = [name for name in self._names if name.partition("/")[0] in roles]
        return divide(
            self._names,
            computing,
            cpus_per_task=self._options.cpus_per_task,
            gpus_per_task=self._options.gpus_per_task,
        )

    def _plan(self, stack: contextlib.ExitStack) -> list[TaskPlan]:
        common = common_environment(self._options.env)
        if self._job.here is None:
            # Only this job's own tasks can then take part in its meeting and its ring.
            common.setdefault(SECRET_VARIABLE, secrets.token_hex(32))
        # The launcher knows better than the tasks which of them is stuck.
        limit = _TASKS_WAIT * self._options.stall_timeout or math.inf
        common.setdefault(STALL_VARIABLE, str(limit))
        commands = {
            role: resolve_command(words, common) for role, words in self._job.commands.items()
        }
        logs = self._open_logs(stack)
        plans = []
        for name in self._names:
            role, share = name.partition("/")[0], self._shares[name]
            of_role = self._job.env.get(role, {})
            env = task_environment(common, share, of_role, self._options.env)
            plans.append(TaskPlan(name, commands[role], env, share, logs.get(name)))
        return plans

    def _open_logs(self, stack: contextlib.ExitStack) -> dict[str, LogFile]:
        folder = self._options.log_dir
        logs: dict[str, LogFile] = {}
        if folder is None:
            return logs
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in self._names:
                path = folder / f"{name.replace('/', '-')}.log"
                file = stack.enter_context(path.open("ab", buffering=0))
                logs[name] = LogFile(file, self._say_once)
                if file.tell():  # The output of an earlier run stays.
                    began = time.strftime("%Y-%m-%d %H:%M:%S")
                    logs[name].write(f"--- another run, begun {began} ---\n".encode())
        except OSError as error:
            raise ConfigError(
                f"--log-dir: {quote(str(folder))} cannot be written: {error.strerror}"
            ) from None
        return logs

    def _describe(self, cause: Exit, run: GroupRun) -> None:
        """Reports the failure: the task, its end, and its last lines."""
        process = run.last[cause.task]
        after = "" if cause.note else f" after {cause.at - process.started:.1f} s"
        self._say(f"{cause.task} failed first: {cause}{after}")
        if process.output.tail:
            self._say(f"last lines of {cause.task}:")
            for line in process.output.tail:
                self._report.write(f"    {line}\n")
        if self._options.log_dir is not None:
            log = self._options.log_dir / f"{cause.task.replace('/', '-')}.log"
            self._say(f"all its output is in {log}")

    def _say(self, text: str) -> None:
        self._report.write(f"tfdist: {text}\n")

    def _say_once(self, text: str) -> None:
        if not self._said_log:
            self._said_log = True
            self._say(f"{text}; the job continues without it")


def _allow_descriptors(tasks: int) -> None:
    """Raises this process' limit of open files where so many tasks need it.

    Raises:
        ConfigError: It may not be raised as far.
    """
    needed = _DESCRIPTORS + _DESCRIPTORS_A_TASK * tasks
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"launch: {plural(tasks, 'task')} need {needed} open files, but this process may have "
            f"{hard} (ulimit -n); raise the limit, or start fewer tasks"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def pause(seconds: float, context: RunContext) -> bool:
    """Waits; returns False if a signal to end came first.

    Args:
        seconds: How long, at most.
        context: That of the run, which receives the signals.
    """
    until = time.monotonic() + seconds
    while not context.signals.ending and (left := until - time.monotonic()) > 0:
        if context.selector.select(left):
            context.signals.drain()
    return not context.signals.ending


def launch(job: Job, options: LaunchOptions | None = None) -> int:
    """Runs a job on this machine and returns the exit code of the cause, or 0.

    Raises:
        ConfigError: The job cannot be started.
    """
    return Supervisor(job, options or LaunchOptions()).run()
