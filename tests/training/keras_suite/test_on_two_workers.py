"""A few of Keras' own tests, through tfdist in two processes of one replica each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training.keras_suite.chosen import SHORT
from tfdist.launcher.ports import free_ports

ROOT = Path(__file__).parents[3]
DEADLINE = 300.0
# Without this project's conftest, which takes TF_CONFIG away and splits the CPU.
PYTEST = (
    *("-m", "pytest", "-q", "--tb=short", "--noconftest", "-p", "no:cacheprovider"),
    *("-o", "addopts=--import-mode=importlib", "-o", "filterwarnings=ignore"),
    "tests/training/keras_suite/on_this_worker.py",
)


def environment(addresses: list[str], index: int) -> dict[str, str]:
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    own = {"TF_CONFIG": json.dumps(config), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return os.environ | own


@pytest.mark.cluster
@pytest.mark.long
def test_both_workers_pass_them(tmp_path):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    logs = [tmp_path / f"worker-{index}.log" for index in range(2)]
    processes: list[subprocess.Popen[bytes]] = []
    until = time.monotonic() + DEADLINE
    try:
        for index, log in enumerate(logs):
            with log.open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, *PYTEST],
                        cwd=ROOT,
                        env=environment(addresses, index),
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        while any(process.poll() is None for process in processes):
            # One that failed has left the other waiting for it.
            if time.monotonic() > until or any(process.poll() for process in processes):
                break
            time.sleep(0.2)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
    said = [log.read_text(errors="replace") for log in logs]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    assert all(f"{len(SHORT)} passed" in text for text in said), "\n".join(said)
