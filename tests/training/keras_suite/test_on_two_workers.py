"""A few of Keras' own tests, through tfdist in two processes of one replica each."""

from __future__ import annotations

import time

import pytest

from tests.tasks import Tasks
from tests.training.keras_suite.chosen import SHORT

# Without this project's conftest, which takes TF_CONFIG away and splits the CPU.
PYTEST = (
    *("-m", "pytest", "-q", "--tb=short", "--noconftest", "-p", "no:cacheprovider"),
    *("-o", "addopts=--import-mode=importlib", "-o", "filterwarnings=ignore"),
    "tests/training/keras_suite/on_this_worker.py",
)


@pytest.mark.cluster
@pytest.mark.long
def test_both_workers_pass_them(tmp_path):
    with Tasks(tmp_path, PYTEST) as workers:
        # One that failed has left the other waiting for it.
        while workers.is_running() and not any(p.poll() for p in workers.processes.values()):
            time.sleep(0.2)
        assert workers.wait(0) == [0, 0], workers.text()
        for task in workers.processes:
            assert f"{len(SHORT)} passed" in workers.output(task), workers.text()
