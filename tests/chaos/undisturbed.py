"""What the learning job ends with under `tfdist launch`, for those who run it elsewhere."""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.chaos.harness import Programs, size

JOB = str(Path(__file__).with_name("learning_job.py"))
EVERY, SPAN = 20, 40  # batches between checkpoints, and of an epoch
EPOCHS = size(1, 2)
AT = EVERY + 5  # the step at which a fault comes: later than the first checkpoint


def variables(folder: Path | str, pause: float = 0.05, **more: Any) -> dict[str, str]:
    """Returns what the job is given in its environment."""
    given = {"DIR": folder, "EPOCHS": EPOCHS, "EVERY": EVERY, "PAUSE": pause, **more}
    return {name: str(value) for name, value in given.items()}


@functools.cache
def launched(roles: str) -> str:
    """Runs the job, once for each roles; returns its hash and last metrics.

    Args:
        roles: Flags of the launcher.
    """
    programs = Programs()
    with tempfile.TemporaryDirectory() as folder:
        try:
            flags = f"{roles} --cpus-per-task 1"
            job = programs.launch(flags, [sys.executable, JOB], **variables(folder))
            assert job.end() == 0, job.text()
        finally:
            programs.close()
    (end,) = {line.partition("END ")[2] for line in job.find(r"\| END ")}
    return end
