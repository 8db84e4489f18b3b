"""Starts the tasks of a cluster on this machine, reads what they print, and leaves none behind.

This is how tests start a job without the launcher; `tests/program.py` runs commands, the launcher
among them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import forked
from tfdist.launcher.ports import free_ports

ROOT = Path(__file__).parents[1]
SECONDS = 240.0  # For all to end, on a busy machine: two of them on two cores are slow.
TWO_WORKERS = {"worker": 2}


class Tasks:
    """Running tasks; as a context manager it kills those that still run at the end.

    Args:
        folder: Where their outputs go.
        command: The program that each runs, as words after the interpreter; {task} in a word
            stands for the name of the task's log, such as worker-0, {index} for its index.
        jobs: How many tasks each job has; {} for one process that has no cluster.
        environment: More environment variables.
        start: Starts a process; by default one that has imported TensorFlow already.
        root: The checkout whose code runs.
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        jobs: Mapping[str, int] = TWO_WORKERS,
        *,
        environment: Mapping[str, str] | None = None,
        start: Callable[..., Any] = forked.Popen,
        root: Path = ROOT,
    ) -> None:
        self.processes: dict[str, Any] = {}
        self._folder = folder
        ports = iter(free_ports(sum(jobs.values())))
        cluster = {job: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for job, n in jobs.items()}
        inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        common = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        common = inherited | common | dict(environment or {})
        tasks = [(job, index) for job, count in jobs.items() for index in range(count)]
        try:
            for job, index in tasks or [("local", 0)]:
                config = {"cluster": cluster, "task": {"type": job, "index": index}}
                own = {"TF_CONFIG": json.dumps(config)} if tasks else {}
                name = f"{job}-{index}"
                words = [w.replace("{task}", name).replace("{index}", str(index)) for w in command]
                with (folder / f"{name}.log").open("wb") as output:
                    self.processes[f"{job}/{index}"] = start(
                        [sys.executable, *words],
                        cwd=root,
                        env=common | own,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Tasks:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def output(self, task: str) -> str:
        """All that a task has printed so far."""
        return (self._folder / f"{task.replace('/', '-')}.log").read_text(errors="replace")

    def text(self) -> str:
        """The last of what each has printed and how it ended, for a message."""
        return "\n".join(
            f"-- {task} (exit code {process.poll()})\n{self.output(task)[-3000:]}"
            for task, process in self.processes.items()
        )

    def lines(self, pattern: str) -> list[str]:
        """The first line of each task's that has a pattern in it; "" for none."""
        outputs = [self.output(task).splitlines() for task in self.processes]
        return [next((line for line in own if pattern in line), "") for own in outputs]

    def until(self, pattern: str, seconds: float = SECONDS) -> None:
        """Waits until every task has printed a pattern."""
        end = time.monotonic() + seconds
        while not all(self.lines(pattern)):
            assert time.monotonic() < end, f"no {pattern!r}\n{self.text()}"
            failed = any(process.poll() for process in self.processes.values())
            assert not failed or all(self.lines(pattern)), self.text()
            time.sleep(0.02)

    def is_running(self) -> bool:
        """Whether any task runs."""
        return any(process.poll() is None for process in self.processes.values())

    def wait(self, seconds: float = SECONDS) -> list[int]:
        """Waits until all have ended; kills those that have not by then.

        Returns:
            The exit codes, in the order of the jobs; that of SIGKILL for one that was killed.
        """
        end = time.monotonic() + seconds
        while self.is_running() and time.monotonic() < end:
            time.sleep(0.02)
        self.close()
        return [process.returncode for process in self.processes.values()]

    def end(self, task: str, seconds: float = SECONDS) -> int:
        """Waits for the end of one; returns its exit code."""
        try:
            code: int = self.processes[task].wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{task} did not end in {seconds} s\n{self.text()}") from None
        return code

    def close(self) -> None:
        """Ends all that run: nothing but SIGKILL ends one that waits for a peer."""
        for process in self.processes.values():
            process.kill()
            process.wait()


def run_tasks(
    folder: Path, program: str, jobs: Mapping[str, int] = TWO_WORKERS, **options: Any
) -> dict[str, tuple[int, str]]:
    """Runs Python code as each task of a cluster to the end.

    Args:
        folder: Where the code and the outputs go.
        program: The code.
        jobs: How many tasks each job has.
        **options: Of `Tasks`.

    Returns:
        The exit code and the output of each task; the code is that of SIGKILL for one that did
        not end in time.
    """
    script = folder / "program.py"
    script.write_text(program)
    with Tasks(folder, [str(script)], jobs, **options) as tasks:
        codes = tasks.wait()
        return {
            task: (code, tasks.output(task))
            for task, code in zip(tasks.processes, codes, strict=True)
        }


def run_workers(folder: Path, program: str, **options: Any) -> list[tuple[int, str]]:
    """Runs Python code as each of two workers; returns the exit code and the output of each."""
    return list(run_tasks(folder, program, **options).values())
