"""Runs features in several places, two runs at a time."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.training.conformance.launch import Run

# Seconds without any cell ready, on a machine that may be busy with other things.
PATIENCE = 300.0


class Runs:
    """The runs of this session, by loop and place; they start before their results are asked for.

    Args:
        folder: Where results go.
        plan: What to run: (loop, where) to the names of features.
        **options: More arguments of each `Run`.
    """

    def __init__(
        self, folder: Path, plan: dict[tuple[str, str], list[str]], **options: Any
    ) -> None:
        self._folder = folder
        self._options = options
        self._lock = threading.Lock()
        self._stopped = False
        self._running: list[Run] = []
        self._pool = ThreadPoolExecutor(max_workers=2)
        self._reports: dict[tuple[str, str], Future[str]] = {
            key: self._pool.submit(self._run, key, names) for key, names in plan.items()
        }

    def folder(self, loop: str, where: str, worker: int = 0) -> Path:
        """The folder with the cells of a run, once it is over."""
        report = self._reports[loop, where].result()
        folder = self._folder / f"{loop}-{where}" / str(worker)
        assert folder.is_dir(), report
        return folder

    def report(self, loop: str, where: str) -> str:
        """How the run's processes ended."""
        return self._reports[loop, where].result()

    def stop(self) -> None:
        """Ends what still runs."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for run in running:
            run.stop()
        self._pool.shutdown(cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, key: tuple[str, str], names: list[str]) -> str:
        with self._lock:
            if self._stopped:
                return "stopped"
            run = Run(self._folder / "-".join(key), *key, names, **self._options)
            self._running.append(run)
        run.wait(PATIENCE)
        return run.report()
