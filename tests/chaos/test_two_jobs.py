"""Two jobs in one checkpoint directory: the second is refused or waits, and neither is harmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.harness import Program, Programs, size, wait
from tests.chaos.test_recovery import end_of, start, steps

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

EPOCHS = 3
USED = r"tfdist: checkpoint_dir: '.*' is in use by another job \(process \d+ on "


@pytest.fixture(scope="module")
def undisturbed() -> list[str]:
    """The end of a job that nobody disturbs, once it is known."""
    return []


def until_step(job: Program, number: int) -> None:
    wait(lambda: max(steps(job), default=0) >= number, what=f"step {number}\n{job.text()}")


@pytest.mark.parametrize("trial", range(size(0, 20)))
def test_a_second_job_is_refused_and_the_first_ends_as_undisturbed(
    programs: Programs,
    tmp_path: Path,
    trial: int,
    undisturbed: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not undisturbed:
        undisturbed.append(end_of(start(programs, tmp_path / "undisturbed", EPOCHS, 0)))
    # Slow enough for the second one to come, to wait and to be refused meanwhile.
    first = start(programs, tmp_path / "both", EPOCHS, 0, pause=0.4)
    until_step(first, 5 + trial)
    monkeypatch.setenv("TFDIST_WAIT", "6")  # Neither for tasks nor for the lock longer.
    second = start(programs, tmp_path / "both", EPOCHS, 0)
    second.until(rf"{USED}.*give this job its own directory")
    assert second.end() == 2, second.text()
    assert not second.find("STEP")
    assert end_of(first) == undisturbed[0]


@pytest.mark.long
def test_a_job_that_takes_the_place_of_one_that_still_saves_waits(
    programs: Programs, tmp_path: Path
) -> None:
    want = end_of(start(programs, tmp_path / "undisturbed", EPOCHS, 0))
    # Slow enough for the second one to come meanwhile.
    first = start(programs, tmp_path / "both", EPOCHS, 0, pause=1.0)
    until_step(first, 5)
    second = start(programs, tmp_path / "both", EPOCHS, 0)
    second.until(rf"{USED}.*waiting for its end")
    assert first.process.poll() is None, first.text()
    first.process.terminate()
    assert first.end() == 143, first.text()
    assert end_of(second) == want
    assert second.find("resuming from .*checkpoint-"), second.text()
