"""Two processes train by the ring as they do by TensorFlow's collectives, and end well or badly."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.collectives.ring.job import CASES
from tests.tasks import Tasks

pytestmark = pytest.mark.cluster

JOB = Path(__file__).with_name("job.py")
PATIENCE = 600.0  # for a busy machine


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Callable[..., Tasks]]:
    made: list[Tasks] = []

    def make(**environment: str) -> Tasks:
        made.append(Tasks(tmp_path, [str(JOB), str(tmp_path)], environment=environment))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ring")
    both = Tasks(folder, [str(JOB), str(folder)])
    assert both.wait(PATIENCE) == [0, 0], both.text()
    assert "transport ring (asked for" in both.output("worker/0")
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
    both.until("READY")
    both.processes["worker/1"].kill()
    assert both.end("worker/0") == 138, both.output("worker/0")
    # The ring's own words: TensorFlow's would come when heartbeats have stayed away, or not at all.
    assert "tfdist: worker/0: lost worker/1 (it closed the connection)" in both.output("worker/0")


def test_a_worker_that_fails_takes_the_others_along(pair):
    both = pair(FAULT="raises")
    assert both.end("worker/0") == 138, both.output("worker/0")
    assert both.end("worker/1") == 1, both.output("worker/1")
    assert "tfdist: worker/0: lost worker/1 (" in both.output("worker/0")
    assert "of its own" in both.output("worker/1")


def test_a_flipped_bit_ends_the_job_with_the_names_of_both_ends(pair):
    both = pair(FAULT="flips")
    assert both.wait() == [138, 138], both.text()
    for worker, line in enumerate(both.lines("other bytes")):
        assert line.startswith(
            f"tfdist: worker/{worker}: worker/1 received other bytes than worker/0 sent, in coll"
        ), both.text()
        assert "start the job again to continue from the last checkpoint" in line


def test_a_worker_that_ends_before_the_others_is_out_of_step(pair):
    both = pair(FAULT="left")
    assert both.end("worker/0") == 1, both.output("worker/0")
    assert "the workers do not make the same calls (worker/1: it has finished" in both.output(
        "worker/0"
    )


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_a_signal_ends_a_worker_that_waits(pair, number):
    """TensorFlow holds its main thread."""
    both = pair(FAULT="input silent")
    both.until("READY")
    time.sleep(1.0)
    both.processes["worker/0"].send_signal(number)
    assert both.end("worker/0", 30) == -number, both.output("worker/0")
