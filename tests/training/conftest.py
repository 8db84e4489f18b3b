"""Runs the cells of the conformance suite, each once.

They begin with the session, at a low priority, and use what the tests before the suite leave of
the machine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.training.conformance.runs import Runs

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
