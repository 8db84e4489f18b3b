"""The Slurm of two nodes that these tests share; no test may leave a process on a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.harness import Programs
from tests.slurm.batch import Batches
from tests.slurm.two_nodes import TwoNodes


@pytest.fixture(scope="session")
def nodes() -> Iterator[TwoNodes]:
    made = TwoNodes()
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def batches(nodes: TwoNodes, tmp_path: Path) -> Iterator[Batches]:
    try:
        yield Batches(nodes, tmp_path)
    finally:
        nodes.clear()


@pytest.fixture
def programs() -> Iterator[Programs]:
    """Jobs of the launcher, to compare with."""
    started = Programs()
    try:
        yield started
    finally:
        started.close()
