"""Rendered jobs in the queue: what they say, how they end, and which processes are their tasks."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.harness import SOON, wait
from tests.slurm.two_nodes import TwoNodes
from tfdist.render.slurm import sbatch
from tfdist.render.slurm_job import SlurmJob

_ROOT = Path(__file__).parents[2]
_DONE = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"}


class Batch:
    """A job in the queue.

    Attributes:
        number: Its number in the queue.
    """

    def __init__(self, nodes: TwoNodes, folder: Path, job: SlurmJob, env: dict[str, str]) -> None:
        self._nodes = nodes
        script = folder / f"{job.name}.sbatch"
        script.write_text(sbatch(job))
        words = ["sbatch", "--parsable", f"--chdir={folder}", str(script)]
        self.number = nodes.run(*words, env=env).strip()
        self._path = folder / f"{job.name}-{self.number}.out"

    @property
    def lines(self) -> list[str]:
        """All that its tasks have said so far, and Slurm about them."""
        with contextlib.suppress(FileNotFoundError):
            return self._path.read_text(errors="replace").splitlines()
        return []

    def find(self, pattern: str, since: int = 0) -> list[str]:
        """The lines that match, from line number `since` on."""
        return [line for line in self.lines[since:] if re.search(pattern, line)]

    def until(self, pattern: str, since: int = 0, seconds: float = SOON) -> str:
        """Waits for a line."""

        def seen() -> list[str]:
            found = self.find(pattern, since)
            assert found or self.state not in _DONE, f"no {pattern}\n{self.text()}"
            return found

        try:
            return wait(seen, seconds, pattern)[0]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None

    @property
    def state(self) -> str:
        """Its state, as Slurm has it."""
        return self._nodes.job(self.number)["JobState"]

    @property
    def restarts(self) -> int:
        """How often it came back from the queue."""
        return int(self._nodes.job(self.number)["Restarts"])

    def until_back(self, seconds: float = SOON) -> int:
        """Waits until it came back from the queue once; returns the number of lines before."""

        def back() -> int:
            before = len(self.lines)
            assert self.state not in _DONE, self.text()
            return before if self.restarts else 0

        try:
            return int(wait(back, seconds, "its return"))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None

    def end(self, seconds: float = 3 * SOON) -> int:
        """Waits for its end; returns its exit code."""
        try:
            wait(lambda: self.state in _DONE, seconds, "its end")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None
        return int(self._nodes.job(self.number)["ExitCode"].partition(":")[0])

    def task(self, rank: int, node: str) -> psutil.Process:
        """The process of a task: the command, not the `tfdist task` around it."""

        def found() -> psutil.Process | None:
            for process in self._nodes.processes(node):
                with contextlib.suppress(psutil.Error):
                    environ = process.environ()
                    around = process.parent()
                    # srun and the batch script have a rank too, and no step.
                    if (
                        environ.get("SLURM_JOB_ID") == self.number
                        and environ.get("SLURM_PROCID") == str(rank)
                        and "SLURM_STEP_ID" in environ
                        and around is not None
                        and "task" in around.cmdline()
                    ):
                        return process
            return None

        process: psutil.Process = wait(found, what=f"task {rank} on {node}")
        return process

    def text(self) -> str:
        """All of it, for a message."""
        about = self._nodes.run("scontrol", "show", "job", self.number)
        return "\n".join([*self.lines, about, self._nodes.logs()])


class Batches:
    """The jobs of one test.

    Attributes:
        nodes: Where they run.
        folder: Where they start and write.
    """

    def __init__(self, nodes: TwoNodes, folder: Path) -> None:
        self.nodes, self.folder = nodes, folder

    def submit(
        self, command: Sequence[str], env: dict[str, Any] | None = None, **job: Any
    ) -> Batch:
        """Renders a job and submits it."""
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        variables = {"PATH": path, "PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1"}
        variables |= {name: str(value) for name, value in (env or {}).items()}
        fields = {"name": "job", "workers": 2, "cpus": 1, "memory": "1G", "time": "60"} | job
        return Batch(self.nodes, self.folder, SlurmJob(command=command, **fields), variables)
