"""Starts the processes of a run, waits with a deadline, and leaves none behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tfdist.launcher.ports import free_ports

ROOT = Path(__file__).parents[3]
JOBS = {
    "multi_worker_mirrored": {"worker": 2},
    "parameter_server": {"chief": 1, "worker": 2, "ps": 1},
}


class Run:
    """The processes that run some features in one place.

    Args:
        folder: Where results go: `folder/<worker>/<feature>/`.
        loop: "tfdist" or "keras".
        where: A strategy, or none@N.
        features: Names of features.
        root: The checkout whose code and suite run.
        module: The program of a process; it takes the arguments of `conformance.task`.
    """

    def __init__(
        self,
        folder: Path,
        loop: str,
        where: str,
        features: Sequence[str],
        root: Path = ROOT,
        module: str = "tests.training.conformance.task",
    ) -> None:
        self.folder = folder
        self._root = root
        self._module = module
        self.features = list(features)
        self.name = f"{loop} {where}"
        transport = os.environ.get("TFDIST_CONFORMANCE_TRANSPORT", "auto")
        jobs = JOBS.get(where)
        self.workers = jobs["worker"] if where == "multi_worker_mirrored" and jobs else 1
        self.stalled = False  # Whether it was ended because nothing came any more.
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []
        folder.mkdir(parents=True, exist_ok=True)
        environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        environment |= {
            "PYTHONPATH": str(root),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "TFDIST_TRANSPORT": transport,
        }
        if jobs is None:
            self._start("local", environment, loop, where)
            return
        ports = iter(free_ports(sum(jobs.values())))
        cluster = {job: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for job, n in jobs.items()}
        for job, count in jobs.items():
            for index in range(count):
                task = {"cluster": cluster, "task": {"type": job, "index": index}}
                own = environment | {"TF_CONFIG": json.dumps(task)}
                self._start(f"{job}-{index}", own, loop, where)

    def _start(self, task: str, environment: dict[str, str], loop: str, where: str) -> None:
        log = self.folder / f"{task}.log"
        # Other tests may run beside it, and some of them have deadlines.
        command = ["nice", "-n", "10", sys.executable, "-m", self._module]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, str(self.folder), loop, where, *self.features],
                cwd=self._root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        self._logs.append(log)

    def done(self) -> list[str]:
        """The features that every worker has finished."""
        return [name for name in self.features if self._is_done(name)]

    def _is_done(self, name: str) -> bool:
        return all(
            (self.folder / str(worker) / name / "error.json").exists()
            for worker in range(self.workers)
        )

    def is_running(self) -> bool:
        """Whether any process runs."""
        return any(process.poll() is None for process in self._processes)

    def wait(self, patience: float) -> list[str]:
        """Waits until all is done, or for so long without any progress.

        Returns:
            The features done.
        """
        done, since = self.done(), time.monotonic()
        while self.is_running():
            if any(process.poll() for process in self._processes):
                time.sleep(5)  # Let the others end by themselves: their logs say more.
                break
            time.sleep(0.2)
            now = self.done()
            if len(now) > len(done):
                done, since = now, time.monotonic()
            if time.monotonic() - since > patience:
                self.stalled = True
                break
        self.stop()
        return self.done()

    def stop(self) -> None:
        """Ends all processes: nothing but SIGKILL ends one that waits for a peer."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def report(self) -> str:
        """How the processes ended, with the last lines they wrote."""
        lines = []
        for process, log in zip(self._processes, self._logs, strict=True):
            lines.append(f"-- {self.name}: {log.stem} ended with {process.returncode}")
            lines += log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join(lines)
