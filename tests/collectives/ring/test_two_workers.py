"""Two processes train by the ring as they do by TensorFlow's collectives, and end well or badly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.collectives.ring.job import CASES
from tfdist.launcher.ports import free_ports

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[3]
JOB = Path(__file__).with_name("job.py")
PATIENCE = 600.0  # for a busy machine


class Pair:
    """Two workers, each with a file for what it says."""

    def __init__(self, folder: Path, **environment: str) -> None:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
        self._logs = [folder / f"worker-{index}.log" for index in range(2)]
        self.processes = []
        for index, log in enumerate(self._logs):
            task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            environment |= {"TF_CONFIG": json.dumps(task), "TF_CPP_MIN_LOG_LEVEL": "3"}
            environment |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, str(JOB), str(folder)],
                    env=os.environ | environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            self.processes.append(process)

    def said(self, index: int) -> str:
        return self._logs[index].read_text(errors="replace")

    def until_ready(self) -> None:
        end = time.monotonic() + PATIENCE
        while not all("READY" in self.said(index) for index in range(2)):
            assert time.monotonic() < end, self.said(0) + self.said(1)
            assert not any(p.poll() for p in self.processes), self.said(0) + self.said(1)
            time.sleep(0.02)

    def end(self, index: int, seconds: float = PATIENCE) -> int:
        try:
            return self.processes[index].wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end\n{self.said(0)}{self.said(1)}") from None

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[type[Pair]]:
    made: list[Pair] = []

    def make(**environment: str) -> Pair:
        made.append(Pair(tmp_path, **environment))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ring")
    both = Pair(folder)
    try:
        assert [both.end(0), both.end(1)] == [0, 0], both.said(0) + both.said(1)
    finally:
        both.close()
    assert "transport ring (asked for)" in both.said(0)
    return folder


def values(folder: Path, case: str, transport: str, worker: int) -> dict[str, np.ndarray]:
    with np.load(folder / f"{case}-{transport}-{worker}.npz") as stored:
        return {name: stored[name] for name in stored.files}


@pytest.mark.parametrize("case", CASES)
def test_the_ring_gives_the_same_bits(trained: Path, case: str) -> None:
    """Of two workers: a + b is b + a, and a sum is rounded once."""
    want = values(trained, case, "tensorflow", 0)
    for worker in range(2):
        found = values(trained, case, "ring", worker)
        assert found.keys() == want.keys()
        different = [name for name in want if not np.array_equal(found[name], want[name])]
        assert not different, different


def test_a_killed_worker_is_named_at_once(pair):
    both = pair(FAULT="input silent")
    both.until_ready()
    both.processes[1].kill()
    assert both.end(0) == 138, both.said(0)
    # The ring's own words: TensorFlow's would come when heartbeats have stayed away, or not at all.
    assert "tfdist: worker/0: lost worker/1 (it closed the connection)" in both.said(0)


def test_a_worker_that_fails_takes_the_others_along(pair):
    both = pair(FAULT="raises")
    assert both.end(0) == 138, both.said(0)
    assert both.end(1) == 1, both.said(1)
    assert "tfdist: worker/0: lost worker/1 (" in both.said(0)
    assert "of its own" in both.said(1)


def test_a_worker_that_ends_before_the_others_is_out_of_step(pair):
    both = pair(FAULT="left")
    assert both.end(0) == 1, both.said(0)
    assert "the workers do not make the same calls (worker/1: it has finished" in both.said(0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_worker_that_waits(pair, number):
    """TensorFlow holds its main thread."""
    both = pair(FAULT="input silent")
    both.until_ready()
    time.sleep(1.0)
    both.processes[0].send_signal(number)
    assert both.end(0, 30) == -number, both.said(0)
