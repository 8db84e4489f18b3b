"""Ctrl-C at any time, and after it no process and no port."""

from __future__ import annotations

import random
import signal
import time

import pytest

from tests.chaos.harness import Programs, size, wait

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

# Each task holds its port, has children of its own, one of which tries to get away, and may
# not want to end.
SCRIPT = """
import json, os, random, signal, socket, subprocess, time
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
host, port = config["cluster"][task["type"]][task["index"]].split(":")
server = socket.create_server((host, int(port)))
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000"], start_new_session=True)
if random.random() < 0.3:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("UP", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("trial", range(size(2, 20)))
def test_interrupts_leave_nothing(programs: Programs, trial: int) -> None:
    generator = random.Random(f"orphans {trial}")
    count = generator.randint(1, 3)
    job = programs.launch(f"--workers {count} --grace 1", ["python", "-c", SCRIPT])
    if trial % 3 == 2:  # In the midst of starting.
        time.sleep(generator.uniform(0.3, 1.0))
    else:
        wait(lambda: len(job.find("UP")) == count)
        assert len(job.left()) > 4 * count
        assert len(job.tasks()) == count and len(job.ports) == count
    for _ in range(generator.choice([1, 1, 2])):
        job.process.send_signal(signal.SIGINT)
        time.sleep(generator.uniform(0.0, 0.3))
    # In its first moments the command has no handler yet, and ends by the signal itself.
    assert job.end() in (130, -signal.SIGINT), job.text()
    job.assert_nothing_left()
