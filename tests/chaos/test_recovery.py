"""Workers that are killed and preempted at random: the end is that of an undisturbed run."""

from __future__ import annotations

import random
import re
import signal
from pathlib import Path

import pytest

from tests.chaos.harness import Program, Programs, python, size, wait
from tests.training.checkpoint.test_directory import killed_savers

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

JOB = str(Path(__file__).with_name("learning_job.py"))
EVERY = 20
APART = 40  # steps from one fault to the next, at most
SPAN = 40  # steps an epoch, as in the job


def start(
    programs: Programs, folder: Path, epochs: int, restarts: int, *, pause: float = 0.02
) -> Program:
    return programs.launch(
        f"--workers 2 --grace 20 --restart-delay 0.1 --max-restarts {restarts}",
        [*python(), JOB],
        DIR=str(folder),
        EPOCHS=str(epochs),
        EVERY=str(EVERY),
        PAUSE=str(pause),
    )


def end_of(job: Program) -> str:
    """The hash of weights and optimizer, and the last metrics, the same on both workers."""
    assert job.end(600) == 0, job.text()
    ends = [line.partition("END ")[2] for line in job.find(r"\| END ")]
    assert len(ends) == 2 and ends[0] == ends[1], job.text()
    return ends[0]


def steps(job: Program, since: int = 0) -> list[int]:
    return [int(line.rpartition(" ")[2]) for line in job.find(r"\| STEP \d+$", since)]


def test_kills_and_preemptions_lose_nothing(programs: Programs, tmp_path: Path) -> None:
    generator = random.Random("recovery")
    faults = [signal.SIGKILL] * size(1, 50) + [signal.SIGTERM] * size(1, 20)
    generator.shuffle(faults)
    victims = [generator.randrange(2) for _ in faults]
    victims[faults.index(signal.SIGKILL)] = 0  # The chief's turn, whatever was drawn.
    epochs = 1 + len(faults) * APART // SPAN

    undisturbed = start(programs, tmp_path / "undisturbed", epochs, 0)
    want = end_of(undisturbed)
    assert steps(undisturbed, 0) == list(range(1, epochs * SPAN + 1))

    job = start(programs, tmp_path / "disturbed", epochs, len(faults))
    since = at = lost = 0
    for number, (fault, victim) in enumerate(zip(faults, victims, strict=True)):
        # Later than the first checkpoint, so that there is one to go on from.
        target = max(at + 1, EVERY + 5 if not number else 0) + generator.randrange(APART // 2)
        wait(lambda since=since, target=target: max(steps(job, since), default=0) >= target)
        job.kill(f"worker/{victim}", fault)
        again = job.until("starting all tasks again", since)
        done = max(steps(job, since))
        since = job.lines.index(again) + 1
        ending = "killed by SIGKILL" if fault == signal.SIGKILL else "exit code 143"
        assert job.find(f"failed first: {ending}"), job.text()
        resumed = job.until(r"resuming from .*checkpoint-(\d+)\.tfdist", since)
        at = int(re.search(r"checkpoint-(\d+)", resumed)[1])
        if fault == signal.SIGTERM:
            assert at == done, f"preempted after step {done}, resumed at {at}\n{job.text()}"
        lost += max(0, done - at)
        job.until(rf"\| STEP {at + 1}$", since)
    assert end_of(job) == want
    kills = faults.count(signal.SIGKILL)
    assert len(job.find("failed first: killed by SIGKILL")) == kills
    assert len(job.find("failed first: exit code 143")) == len(faults) - kills
    assert lost <= kills * EVERY
    print(f"{kills} kills, {len(faults) - kills} SIGTERM: {lost} steps done again; same hash")


@pytest.mark.long
def test_kills_during_a_save_leave_an_intact_checkpoint(tmp_path: Path) -> None:
    out = killed_savers(tmp_path, size(10, 200))
    print(out.strip())
    assert int(out.split()[2]) > 0, out
