"""Every fault of this folder at random, for half an hour: the end is that of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.harness import FULL, SOON, Program, Programs, wait
from tests.chaos.test_recovery import EVERY, JOB, SPAN, end_of, start, steps

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

SECONDS = float(os.environ.get("TFDIST_CHAOS_SOAK", "1800"))
SEED = os.environ.get("TFDIST_CHAOS_SEED", "soak")
STALL = 15.0
# A job that is broken so often makes about so many steps a second, the restarts included.
STEPS_A_SECOND = 8.0


class Soak:
    """A job that is broken again and again, and started again where it had to end.

    Args:
        programs: Starts the launchers.
        folder: For checkpoints.
        epochs: Of the job.
    """

    def __init__(self, programs: Programs, folder: Path, epochs: int) -> None:
        self._programs, self._folder, self._epochs = programs, folder, epochs
        self.job = self._start()
        self._since = 0  # The line of the job from which on its present run speaks.

    def _start(self) -> Program:
        flags = "--workers 2 --grace 30 --restart-delay 0.1 --max-restarts 1000"
        flags += f" --stall-timeout {STALL}"
        self._since = 0
        return self._programs.launch(
            flags,
            ["python", JOB],
            DIR=str(self._folder),
            EPOCHS=str(self._epochs),
            EVERY=str(EVERY),
            PAUSE="0.02",
        )

    def until_steps(self, number: int) -> bool:
        """Waits for steps of the present run; False if the job has ended."""
        wait(
            lambda: (
                len(steps(self.job, self._since)) >= number or self.job.process.poll() is not None
            ),
            what=f"{number} steps\n{self.job.text()[-5000:]}",
        )
        return self.job.process.poll() is None

    def _again(self, cause: str) -> None:
        again = self.job.until("starting all tasks again", self._since)
        assert self.job.find(cause, self._since), self.job.text()[-5000:]
        self._since = self.job.lines.index(again, self._since) + 1

    def kill(self, draw: random.Random) -> None:
        self.job.kill(f"worker/{draw.randrange(2)}", signal.SIGKILL)
        self._again("failed first: killed by SIGKILL")

    def preempt(self, draw: random.Random) -> None:
        self.job.kill(f"worker/{draw.randrange(2)}", signal.SIGTERM)
        self._again("failed first: exit code 143")

    def stop(self, draw: random.Random) -> None:
        self.job.kill(f"worker/{draw.randrange(2)}", signal.SIGSTOP)
        self._again("stalled: no progress for|lost worker/")

    def preempt_all(self, draw: random.Random) -> None:
        self.job.process.terminate()
        assert self.job.end() == 143, self.job.text()[-5000:]
        self.job = self._start()

    def interrupt(self, draw: random.Random) -> None:
        self.job.process.send_signal(signal.SIGINT)
        assert self.job.end() in (130, -signal.SIGINT), self.job.text()[-5000:]
        self.job = self._start()

    def kill_launcher(self, draw: random.Random) -> None:
        self.job.process.kill()
        assert self.job.end() == -signal.SIGKILL
        wait(lambda: not self.job.left(), what="the end of all tasks")
        self.job = self._start()

    def second_job(self, draw: random.Random) -> None:
        other = self._programs.launch(
            "--workers 2",
            ["python", JOB],
            # Its tasks may start seconds apart on a busy machine.
            TFDIST_WAIT="20",
            DIR=str(self._folder),
            EPOCHS="1",
            EVERY="20",
            PAUSE="0",
        )
        code = other.end()
        refused = other.find("is in use by another job|all .* epochs .* done|are done")
        assert refused and code in (0, 2), other.text()

    def strangers(self, draw: random.Random) -> None:
        called = 0
        self.job.tasks()
        for port in sorted(self.job.ports):
            for text in (b"\x00" * 100, b"GET / HTTP/1.0\r\n\r\n", draw.randbytes(5000)):
                try:
                    with socket.create_connection(("127.0.0.1", port), timeout=2) as caller:
                        caller.sendall(text)
                        called += 1
                except OSError:
                    continue  # A port of an earlier run.
        assert called, "nobody was there to call"


FAULTS: tuple[Callable[[Soak, random.Random], None], ...] = (
    Soak.kill,
    Soak.kill,
    Soak.preempt,
    Soak.stop,
    Soak.preempt_all,
    Soak.interrupt,
    Soak.kill_launcher,
    Soak.second_job,
    Soak.strangers,
)


@pytest.mark.skipif(not FULL, reason="half an hour")
def test_half_an_hour_of_faults_changes_nothing(programs: Programs, tmp_path: Path) -> None:
    epochs = 1 + round(SECONDS * STEPS_A_SECOND / SPAN)
    want = end_of(start(programs, tmp_path / "undisturbed", epochs, 0, pause=0.0))
    soak = Soak(programs, tmp_path / "disturbed", epochs)
    draw = random.Random(SEED)
    began, made = time.monotonic(), dict.fromkeys((each.__name__ for each in FAULTS), 0)
    while time.monotonic() < began + SECONDS:
        # Later than the first checkpoint, so that there is one to go on from.
        if not soak.until_steps(EVERY + 5 if not sum(made.values()) else draw.randrange(1, 60)):
            break
        fault = draw.choice(FAULTS)
        print(
            f"{time.monotonic() - began:6.0f} s, step {max(steps(soak.job), default=0)}: "
            f"{fault.__name__}",
            flush=True,
        )
        fault(soak, draw)
        made[fault.__name__] += 1
    assert soak.job.end(SECONDS + SOON) == 0, soak.job.text()[-5000:]
    ends = {line.partition("END ")[2] for line in soak.job.find(r"\| END ")}
    assert ends == {want}, soak.job.text()[-5000:]
    assert all(made.values()) or SECONDS < 600, made
    print(f"{sum(made.values())} faults in {time.monotonic() - began:.0f} s: {made}; same hash")
