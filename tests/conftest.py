"""Order of the tests, and an environment that does not leak into them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# Before TensorFlow is imported, here or in a process that a test starts.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
for _name in list(os.environ):
    if _name in ("TF_CONFIG", "JOB_COMPLETION_INDEX") or (
        _name.startswith(("SLURM_", "TFDIST_", "PET_", "JAX_"))
        and not _name.startswith(("TFDIST_CHAOS", "TFDIST_CONFORMANCE", "TFDIST_FUZZ"))
    ):
        del os.environ[_name]

# Ignored where a shell started the tests in the background, and then by all that they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

DEVICES = 4
TESTS = Path(__file__).parent
# Folders whose tests do not import TensorFlow: they answer in seconds.
QUICK = ("cluster", "rendezvous", "launcher", "render", "cli", "scaling", "runtime")
QUICK_FILES = ("test_layers.py", "test_partition.py", "test_public_face.py", "test_docs.py")

# Tests that mostly wait for processes of their own, though they are no clusters: see __main__.
BESIDE = ("programs", "test_examples.py", "runtime/test_startup.py")


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
    if item.path.name == "test_schedule.py":  # The one module of scaling that needs Keras.
        return 1
    return 0 if item.path.relative_to(TESTS).parts[0] in (*QUICK, *QUICK_FILES) else 1


@pytest.hookimpl(tryfirst=True)  # Before tests are chosen by their marks.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "keras_suite" in item.path.parts:
            item.add_marker("keras_suite")
        if any(item.path.is_relative_to(TESTS / name) for name in BESIDE):
            item.add_marker("beside")
        if item.get_closest_marker("long"):
            kind = "CHAOS" if item.get_closest_marker("chaos") else "CONFORMANCE"
            if os.environ.get(f"TFDIST_{kind}") != "full":
                item.add_marker(pytest.mark.skip(reason=f"long; make {kind.lower()} runs it"))
    items.sort(key=_rank)  # a stable sort: order inside a rank stays


@pytest.fixture(scope="session")
def devices() -> list[str]:
    """Names of four logical CPUs, one physical one split."""
    import tfdist

    return tfdist.virtual_devices(DEVICES)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Splits the CPU before any fixture starts TensorFlow's runtime: a process has one layout."""
    if _rank(item) == 1:
        import tfdist

        tfdist.virtual_devices(DEVICES)
