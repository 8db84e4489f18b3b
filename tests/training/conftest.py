"""Runs the cells of the conformance suite, three runs at a time, each cell once.

They begin with the session, at a low priority, and use what the tests before the suite leave of
the machine.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.training.conformance.launch import Run

# Seconds without any cell ready, on a machine that may be busy with other things.
PATIENCE = 300.0


class Runs:
    """The runs of this session, by loop and place; they start before their results are asked for.

    Args:
        folder: Where results go.
        plan: What to run: (loop, where) to the names of features.
    """

    def __init__(self, folder: Path, plan: dict[tuple[str, str], list[str]]) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._stopped = False
        self._running: list[Run] = []
        self._pool = ThreadPoolExecutor(max_workers=3)
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
            run = Run(self._folder / "-".join(key), *key, names)
            self._running.append(run)
        run.wait(PATIENCE)
        return run.report()


_RUNS = pytest.StashKey[Runs]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts the runs that the selected tests of the suite ask for."""
    cells = [
        (item.callspec.params["feature"], item.callspec.params["strategy"])
        for item in session.items
        if "runs" in getattr(item, "fixturenames", ()) and hasattr(item, "callspec")
    ]
    if cells and not session.config.option.collectonly:
        from tests.training.conformance.plan import plan

        folder = Path(tempfile.mkdtemp(prefix="tfdist-conformance-"))
        session.config.stash[_RUNS] = Runs(folder, plan(cells))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Ends them, whatever ended the session."""
    runs = session.config.stash.get(_RUNS, None)
    if runs is not None:
        runs.stop()


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest) -> Runs:
    """The runs of this session."""
    return request.config.stash[_RUNS]
