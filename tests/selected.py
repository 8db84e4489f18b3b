"""Parameters of which `make test` runs some, and the long runs all: see `long` in setup.cfg."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some(cases: Iterable[tuple[Any, ...]], quick: Collection[tuple[Any, ...]]) -> list[Any]:
    """Returns the cases of a test; those that are not among the quick ones are long."""
    every = list(cases)
    assert all(case in every for case in quick), "a quick case is none of the cases"
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.long) for case in every]
