"""Runs the cells of the conformance suite, each once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.conformance.runs import Runs


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """The runs that the selected tests of the suite ask for; all start with the first of them."""
    from tests.training.conformance.plan import plan

    cells = [
        (item.callspec.params["feature"], item.callspec.params["strategy"])
        for item in request.session.items
        if "runs" in getattr(item, "fixturenames", ()) and hasattr(item, "callspec")
    ]
    started = Runs(Path(tempfile.mkdtemp(prefix="tfdist-conformance-")), plan(cells))
    yield started
    started.stop()
