"""Tasks that stop making progress, and slow ones that do not."""

from __future__ import annotations

import math
import random
import re

import pytest

from tests.chaos.harness import JOB, SOON, Programs

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

LIMIT = 6.0
LATE = 2.0
KINDS = ("stop", "sleep", "deadlock")
SLOW_SECONDS = 1800


@pytest.mark.long
def test_a_stalled_task_is_named_and_a_slow_one_is_not(programs: Programs) -> None:
    """One job: a stall in each attempt, the job restarted after each, then slow work to the end."""
    generator = random.Random("stalls")
    faults = [kind for kind in KINDS for _ in range(10)]
    generator.shuffle(faults)
    victims = [generator.randrange(2) for _ in faults]
    pause = LIMIT / 2
    job = programs.launch(
        f"--workers 2 --stall-timeout {LIMIT} --grace 2 --restart-delay 0.1 "
        f"--max-restarts {len(faults)}",
        ["python", JOB],
        FAULTS=",".join(faults),
        VICTIMS=",".join(map(str, victims)),
        PAUSE=str(pause),
        STEPS=str(1 + math.ceil(SLOW_SECONDS / pause)),
        EPOCHS="1",
    )
    since = 0
    for kind, victim in zip(faults, victims, strict=True):
        fault = job.until(rf"^worker/\d +\| FAULT {kind}", since)
        assert fault.startswith(f"worker/{victim} ")
        named = job.until(r"^tfdist: worker/\d stalled", since, LIMIT + 30)
        seconds = named.at - float(fault.rpartition("at=")[2])
        assert named.startswith(f"tfdist: worker/{victim} stalled: no progress for "), job.text()
        # TensorFlow itself gives up a process that was stopped after 5 to 10 s.
        # When it has been named it is ended, of which the others complain too.
        complaints = [
            line
            for line in job.find(rf"^worker/{1 - victim} .* lost worker/{victim} ", since)
            if line.at < named.at
        ]
        assert not complaints or kind == "stop", job.text()
        assert LIMIT - 1 < seconds < LIMIT + LATE or complaints, f"named after {seconds:.1f} s"
        assert f"worker/{1 - victim} waits for it" in named or complaints, job.text()
        assert ("(SIGSTOP)" in named) == (kind == "stop")
        if kind != "stop":  # Where the input hangs is in a stack of the task's own.
            stacks = [line for line in job.lines[since:] if line.startswith(f"worker/{victim}")]
            assert any(re.search(r'tiny_job.py", line \d+ in examples', s) for s in stacks)
        print(f"{kind} in worker/{victim}: named after {seconds:.1f} s (limit {LIMIT:.0f} s)")
        again = job.until("starting all tasks again", since)
        since = job.lines.index(again, since) + 1
    first = job.until("STEP 1 ", since)
    assert job.end(SLOW_SECONDS + SOON) == 0, job.text()
    print(f"slow steps for {job.lines[-1].at - first.at:.0f} s: no alarm")
    assert job.lines[-1].at - first.at >= SLOW_SECONDS
    assert len(job.find(r"^tfdist: worker/\d stalled")) == len(faults), job.text()
    assert job.find(r"median step: worker/\d .*; slowest: worker/")
