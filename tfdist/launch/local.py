"""Running a job on this machine: starting its tasks, watching, ending and restarting them."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from tfdist.cluster.messages import plural, quote
from tfdist.errors import EXIT_DONE, EXIT_PREEMPTED, ConfigError
from tfdist.launch.exits import Exit, root_cause
from tfdist.launch.job import Job
from tfdist.launch.machine import Share, divide
from tfdist.launch.output import TaskOutput
from tfdist.launch.process import TaskProcess

EXIT_INTERRUPTED = 130

# A task that says "I lost a peer" may say so before the peer is seen to have ended.
_SETTLE_SECONDS = 2.0
_TICK_SECONDS = 0.5
_LONGEST_DELAY = 30.0
# A run that lasted this long was no failure to start: the next delay is short again.
_STEADY_SECONDS = 30.0

Watch = Callable[[Mapping[str, TaskProcess], float], Sequence[Exit]]
"""Looks at the running tasks and returns those that it finds lost, each with a note."""


@dataclass(frozen=True)
class Options:
    """How to run a job.

    Attributes:
        max_restarts: how often tasks may be started again, altogether.
        restart_delay: seconds before the first restart; doubled from one to the next.
        grace: seconds a task has between SIGTERM and SIGKILL.
        log_dir: where each task's output goes too; None for nowhere.
        env: variables for every task.
        cpus_per_task: see `machine.divide`.
        gpus_per_task: see `machine.divide`.
    """

    max_restarts: int = 0
    restart_delay: float = 1.0
    grace: float = 10.0
    log_dir: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cpus_per_task: str = "auto"
    gpus_per_task: str = "auto"


class Supervisor:
    """Runs one job to its end.

    Args:
        job: what to run.
        options: how to run it.
        stream: where the tasks' lines go; stdout by default.
        report: where the supervisor's own lines go; stderr by default.
        watches: called twice a second to find tasks that are lost though they run.
    """

    def __init__(
        self,
        job: Job,
        options: Options,
        *,
        stream: TextIO | None = None,
        report: TextIO | None = None,
        watches: Sequence[Watch] = (),
    ) -> None:
        self._job = job
        self._options = options
        self._stream = sys.stdout if stream is None else stream
        self._report = sys.stderr if report is None else report
        self._watches = watches
        self._names = [
            f"{role}/{i}" for role, members in job.addresses.items() for i in range(len(members))
        ]
        self._width = max(len(name) for name in self._names)
        self._has_ps = "ps" in job.addresses
        self._shares = self._divide()
        self._logs: dict[str, BinaryIO] = {}
        self._selector = selectors.DefaultSelector()
        self._signals: list[int] = []
        self._running: dict[str, TaskProcess] = {}
        self._last: dict[str, TaskProcess] = {}  # the latest run of each task that has ended
        self._exits: dict[str, Exit] = {}
        self._cluster: dict[str, list[str]] = {}
        self._restarts = 0
        self._delays = 0
        self._attempt = 0

    def run(self) -> int:
        """Runs the job and returns the exit code of the cause, or 0.

        Raises:
            ConfigError: the command or the log directory is no good. Nothing was started.
        """
        environment = _environment(self._options.env)
        commands = {
            role: _resolve(command, environment) for role, command in self._job.commands.items()
        }
        with contextlib.ExitStack() as stack:
            self._open_logs(stack)
            for note in self._job.notes:
                self._say(note)
            self._say(f"starting {plural(len(self._names), 'task')}")
            stack.callback(self._selector.close)
            stack.enter_context(self._signal_handlers())
            while True:
                started = time.monotonic()
                cause = self._run_group(commands, environment)
                if cause is None:
                    return EXIT_DONE
                if self._signals:
                    return self._interrupted()
                self._describe(cause)
                if not self._may_restart(cause):
                    return cause.exit_code
                delay = self._next_delay(time.monotonic() - started)
                self._say(f"starting all tasks again in {delay:g} s ({self._count()})")
                if not self._sleep(delay):
                    return self._interrupted()

    def _divide(self) -> dict[str, Share]:
        roles = ("worker",) if self._has_ps else ("chief", "worker")
        computing = [name for name in self._names if name.partition("/")[0] in roles]
        return divide(
            self._names,
            computing,
            cpus_per_task=self._options.cpus_per_task,
            gpus_per_task=self._options.gpus_per_task,
        )

    # One run of the group.

    def _run_group(
        self, commands: Mapping[str, Sequence[str]], environment: Mapping[str, str]
    ) -> Exit | None:
        """Runs all tasks until none is left; returns the cause where the job failed."""
        self._cluster = self._job.place()
        self._exits = {}
        self._attempt += 1
        failures: list[Exit] = []
        starts: list[tuple[float, str]] = [(0.0, name) for name in self._names]
        settled: float | None = None  # when to take the failures seen so far as all
        term_at: float | None = None  # when to ask the rest to end
        kill_at: float | None = None  # when to kill it
        done = False
        heard = 0  # signals to this process that were acted upon
        rejoining = False
        try:
            while True:
                now = time.monotonic()
                if kill_at is None:
                    for start in [s for s in starts if s[0] <= now]:
                        starts.remove(start)
                        self._start(start[1], commands, environment, rejoining=rejoining)
                    rejoining = True
                if not self._running and (not starts or kill_at is not None):
                    break
                times = [t for t in (settled, term_at, kill_at) if t is not None]
                times += [start[0] for start in starts]
                ended = self._wait(min([now + _TICK_SECONDS, *times]))
                now = time.monotonic()
                if len(self._signals) > heard:
                    if heard or len(self._signals) > 1:  # The second time: at once.
                        self._each(TaskProcess.kill)
                    elif kill_at is None:
                        self._say(f"{signal.Signals(self._signals[0]).name}: ending all tasks")
                        term_at = now
                    heard = len(self._signals)
                if kill_at is None and not self._signals:
                    for lost in self._find_lost(now):
                        ended.append(lost)
                for end in ended:
                    if not end.failed or kill_at is not None or self._signals or done:
                        continue
                    if self._may_restart_alone(end):
                        delay = self._next_delay(now - self._started_at(end.task))
                        self._say(
                            f"{end.task} {end}; starting it again in {delay:g} s ({self._count()})"
                        )
                        starts.append((now + delay, end.task))
                    else:
                        failures.append(end)
                        quick = 0.0 if not end.complains else _SETTLE_SECONDS
                        settled = min(settled or now + quick, now + quick)
                if failures and settled is not None and now >= settled:
                    settled, term_at = None, now
                if not failures and not done and not self._signals and self._complete():
                    done = True
                    term_at = now + self._options.grace
                if term_at is not None and now >= term_at:
                    term_at, kill_at = None, now + self._options.grace
                    self._each(TaskProcess.terminate)
                if kill_at is not None and now >= kill_at:
                    kill_at = now + 1.0  # Again, should one have missed it.
                    self._each(TaskProcess.kill)
        finally:
            for name in list(self._running):
                self._forget(name)
        if done:
            return None
        if self._signals and not failures:
            return Exit("tfdist", -self._signals[0], time.monotonic())
        return root_cause(failures)

    def _start(
        self,
        name: str,
        commands: Mapping[str, Sequence[str]],
        environment: Mapping[str, str],
        rejoining: bool,
    ) -> None:
        role, _, index = name.partition("/")
        share = self._shares[name]
        task = {"type": role, "index": int(index)}
        env = {**share.env, **environment, **self._job.env.get(role, {})}
        if "CUDA_VISIBLE_DEVICES" in share.env:
            env["CUDA_VISIBLE_DEVICES"] = share.env["CUDA_VISIBLE_DEVICES"]
        env |= self._options.env
        env["TF_CONFIG"] = json.dumps({"cluster": self._cluster, "task": task})
        env["TFDIST_ATTEMPT"] = str(self._attempt)
        if rejoining:
            # The others are past their meeting: this one must not wait for them there.
            env["TFDIST_REJOIN"] = "1"
        log = self._logs.get(name)
        if log is not None and self._restarts:
            log.write(f"--- started again ({self._count()}) ---\n".encode())
        output = TaskOutput(name, self._width, self._stream, log)
        process = TaskProcess(name, commands[role], env, share.cores, output)
        self._running[name] = process
        self._exits.pop(name, None)
        self._selector.register(process.control, selectors.EVENT_READ, (process, "control"))
        self._selector.register(process.stdout, selectors.EVENT_READ, (process, "stdout"))

    def _wait(self, until: float) -> list[Exit]:
        """Handles what happens until then; returns the tasks that ended."""
        ended: list[Exit] = []
        for key, _ in self._selector.select(max(0.0, until - time.monotonic())):
            if key.data is None:  # A signal came.
                with contextlib.suppress(OSError):
                    os.read(key.fd, 4096)
                continue
            process, source = key.data
            if process.name not in self._running:
                continue
            if source == "stdout":
                if not process.read_output():
                    self._selector.unregister(process.stdout)
            elif not process.read_control():
                self._forget(process.name)
                ended.append(process.exit)
        return ended

    def _forget(self, name: str) -> None:
        """Closes the books on a task, killing it should it still run."""
        process = self._running.pop(name)
        for source in (process.control, process.stdout):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(source)
        process.close()
        if process.exit is not None:
            self._exits[name] = process.exit
        self._last[name] = process

    def _each(self, order: Callable[[TaskProcess], None]) -> None:
        for process in self._running.values():
            order(process)

    def _find_lost(self, now: float) -> list[Exit]:
        found: list[Exit] = []
        for watch in self._watches:
            for lost in watch(self._running, now):
                process = self._running.get(lost.task)
                if process is not None:
                    process.print_stacks()
                    found.append(lost)
        return found

    def _complete(self) -> bool:
        """Whether the job has done its work, whoever still runs."""
        roles: tuple[str, ...] = ("chief", "worker")
        if self._has_ps:
            roles = ("chief",) if "chief" in self._job.addresses else ("worker",)
        deciding = [name for name in self._names if name.partition("/")[0] in roles]
        deciding = deciding or self._names  # Nothing but evaluators.
        return all(name in self._exits and not self._exits[name].failed for name in deciding)

    # Restarting.

    def _may_restart(self, cause: Exit) -> bool:
        return cause.retryable and self._restarts < self._options.max_restarts

    def _may_restart_alone(self, end: Exit) -> bool:
        return self._has_ps and end.task.startswith("worker/") and self._may_restart(end)

    def _next_delay(self, lasted: float) -> float:
        self._restarts += 1
        self._delays = 0 if lasted >= _STEADY_SECONDS else self._delays
        delay = min(self._options.restart_delay * 2**self._delays, _LONGEST_DELAY)
        self._delays = min(self._delays + 1, 16)
        return delay

    def _count(self) -> str:
        return f"restart {self._restarts} of {self._options.max_restarts}"

    def _sleep(self, seconds: float) -> bool:
        """Waits; False when a signal came first."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._signals:
            self._wait(until)
        return not self._signals

    # Talking, and being talked to.

    def _started_at(self, name: str) -> float:
        return self._last[name].started if name in self._last else 0.0

    def _describe(self, cause: Exit) -> None:
        """Reports the failure: the task, how it ended, and what it said last."""
        process = self._last[cause.task]
        self._say(f"{cause.task} failed first: {cause} after {cause.at - process.started:.1f} s")
        if process.output.tail:
            self._say(f"last lines of {cause.task}:")
            for line in process.output.tail:
                print(f"    {line}", file=self._report)
        if cause.task in self._logs:
            self._say(f"all its output is in {self._logs[cause.task].name}")
        self._report.flush()

    def _interrupted(self) -> int:
        return EXIT_INTERRUPTED if self._signals[0] == signal.SIGINT else EXIT_PREEMPTED

    def _say(self, text: str) -> None:
        print(f"tfdist: {text}", file=self._report, flush=True)

    def _open_logs(self, stack: contextlib.ExitStack) -> None:
        folder = self._options.log_dir
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in self._names:
                file = open(folder / f"{name.replace('/', '-')}.log", "wb")  # noqa: SIM115
                self._logs[name] = stack.enter_context(file)
        except OSError as error:
            raise ConfigError(
                f"--log-dir: {quote(str(folder))} cannot be written: {error.strerror}"
            ) from None

    @contextlib.contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        """Collects SIGINT, SIGTERM and SIGHUP; each wakes the selector."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        self._selector.register(read, selectors.EVENT_READ, None)
        before: dict[signal.Signals, Any] = {}
        wakeup = None
        try:
            with contextlib.suppress(ValueError):  # Not in the main thread: no signals come.
                wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                        continue  # nohup
                    before[number] = signal.signal(number, lambda n, _: self._signals.append(n))
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if wakeup is not None:
                signal.set_wakeup_fd(wakeup)
            self._selector.unregister(read)
            os.close(read)
            os.close(write)


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Returns what all tasks have in common."""
    env = {"PYTHONUNBUFFERED": "1", **os.environ}
    # `python` and `tfdist` must be those of the environment that this runs in.
    env["PATH"] = os.pathsep.join(
        [os.path.dirname(sys.executable), extra.get("PATH", env.get("PATH", os.defpath))]
    )
    for name in ("TF_CONFIG", "TFDIST_REJOIN"):
        env.pop(name, None)
    return env


def _resolve(command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Checks that there is such a program; `tfdist` always is the one of this environment.

    Raises:
        ConfigError: there is no such program.
    """
    if (
        command[0] == "tfdist"
        and shutil.which("tfdist", path=os.path.dirname(sys.executable)) is None
    ):
        return [sys.executable, "-m", "tfdist", *command[1:]]  # Run from a source tree.
    if shutil.which(command[0], path=env["PATH"]) is None:
        raise ConfigError(f"launch: no such command: {quote(command[0])}; give a program to run")
    return list(command)


def launch(job: Job, options: Options | None = None) -> int:
    """Runs a job on this machine and returns the exit code of the cause, or 0.

    Raises:
        ConfigError: the job cannot be started.
    """
    return Supervisor(job, options or Options()).run()
