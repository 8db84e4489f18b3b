"""Order of the tests, and an environment that does not leak into them."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest

from tests import durations, forked

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

# Before xdist starts sessions: they share one server of forked processes.
forked.folder()

DEVICES = 4
TESTS = Path(__file__).parent
# Folders and files whose tests leave TensorFlow alone, or to processes of their own.
QUICK = ("cluster", "rendezvous", "launcher", "render", "cli", "scaling", "runtime")
QUICK_FILES = (
    *("test_layers.py", "test_partition.py", "test_public_face.py", "test_docs.py"),
    *("test_files.py", "test_option_fields.py", "test_forked.py"),
)
ELSEWHERE = ("chaos", "pods", "slurm")


def _room(item: pytest.Item) -> str:
    """The folder of tests that it is in, or its file."""
    return item.path.relative_to(TESTS).parts[0]


def _is_quick(item: pytest.Item) -> bool:
    # The one module of scaling that needs Keras.
    return _room(item) in (*QUICK, *QUICK_FILES) and item.path.name != "test_schedule.py"


def _rank(item: pytest.Item) -> int:
    """0 for tests without TensorFlow, then TensorFlow, clusters, chaos."""
    if item.get_closest_marker("chaos"):
        return 3
    if item.get_closest_marker("cluster"):
        return 2
    return 0 if _is_quick(item) else 1


@pytest.hookimpl(tryfirst=True)  # Before tests are chosen by their marks.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("long"):
            kind = "CHAOS" if item.get_closest_marker("chaos") else "CONFORMANCE"
            if os.environ.get(f"TFDIST_{kind}") != "full":
                item.add_marker(pytest.mark.skip(reason=f"long; make {kind.lower()} runs it"))
    if hasattr(config, "workerinput"):
        # A session takes a file at a time: the longest first, so that all end together.
        seconds = durations.read()
        items.sort(key=lambda item: -seconds.get(str(item.path.relative_to(TESTS)), 0.0))
    else:
        items.sort(key=_rank)  # a stable sort: order inside a rank stays


def pytest_collection_finish() -> None:
    # What is imported by now stays, and is left out of every later collection.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def devices() -> list[str]:
    """Names of four logical CPUs, one physical one split."""
    import tfdist

    return tfdist.virtual_devices(DEVICES)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Splits the CPU before any fixture starts TensorFlow's runtime: a process has one layout."""
    if not _is_quick(item) and _room(item) not in ELSEWHERE:
        import tfdist

        tfdist.virtual_devices(DEVICES)
