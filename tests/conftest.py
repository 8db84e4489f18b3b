"""Order of the tests, and an environment that does not leak into them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before TensorFlow is imported, here or in a process that a test starts.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
for _name in list(os.environ):
    if _name in ("TF_CONFIG", "JOB_COMPLETION_INDEX") or (
        _name.startswith(("SLURM_", "TFDIST_")) and _name != "TFDIST_CHAOS"
    ):
        del os.environ[_name]

TESTS = Path(__file__).parent
# Folders whose tests do not import TensorFlow: they answer in seconds.
QUICK = ("cluster", "launch", "cli", "scaling", "ending")


def _rank(item: pytest.Item) -> int:
    """0 for tests without TensorFlow, then TensorFlow, clusters, chaos, the conformance suite.

    What the conformance suite runs goes on beside the tests before it: see tests/training.
    """
    if "runs" in getattr(item, "fixturenames", ()):
        return 4
    if item.get_closest_marker("chaos"):
        return 3
    if item.get_closest_marker("cluster"):
        return 2
    folder = item.path.relative_to(TESTS).parts[0]
    return 0 if folder in (*QUICK, "test_layers.py", "test_farewell.py") else 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)  # a stable sort: order inside a rank stays


@pytest.fixture(scope="session")
def devices() -> list[str]:
    """Names of four logical CPUs, one physical one split."""
    import tfdist

    return tfdist.virtual_devices(4)
