"""The processes of a run: one place, with the features that are run there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests import forked
from tests.tasks import ROOT, Tasks

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
        start: Starts a process; see `Tasks`.
    """

    def __init__(
        self,
        folder: Path,
        loop: str,
        where: str,
        features: Sequence[str],
        root: Path = ROOT,
        module: str = "tests.training.conformance.task",
        start: Callable[..., Any] = forked.Popen,
    ) -> None:
        self.folder = folder
        self.features = list(features)
        self.name = f"{loop} {where}"
        self.workers = JOBS[where]["worker"] if where == "multi_worker_mirrored" else 1
        self.stalled = False  # Whether it was ended because nothing came any more.
        folder.mkdir(parents=True, exist_ok=True)
        self._tasks = Tasks(
            folder,
            ["-m", module, str(folder), loop, where, *self.features],
            JOBS.get(where, {}),
            environment={
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "CUDA_VISIBLE_DEVICES": "",
                "TFDIST_TRANSPORT": os.environ.get("TFDIST_CONFORMANCE_TRANSPORT", "auto"),
            },
            start=start,
            root=root,
        )

    def done(self) -> list[str]:
        """The features that every worker has finished."""
        return [name for name in self.features if self._is_done(name)]

    def _is_done(self, name: str) -> bool:
        return all(
            (self.folder / str(worker) / name / "error.json").exists()
            for worker in range(self.workers)
        )

    def wait(self, patience: float) -> list[str]:
        """Waits until all is done, or for so long without any progress.

        Returns:
            The features done.
        """
        done, since = self.done(), time.monotonic()
        while self._tasks.is_running():
            if any(process.poll() for process in self._tasks.processes.values()):
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
        """Ends all processes."""
        self._tasks.close()

    def report(self) -> str:
        """How the processes ended, with the last lines they printed."""
        return f"{self.name}\n{self._tasks.text()}"
