"""`tfdist task`: what srun is told of a command's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tfdist.cli.task import lifted

TASK = [sys.executable, "-m", "tfdist", "task", "--"]


@pytest.mark.parametrize(
    ("code", "told"),
    [(0, 0), (1, 201), (2, 202), (55, 255), (127, 201), (138, 138), (143, 143), (250, 199)]
    + [(-15, 143), (-9, 138), (-11, 138)],
)
def test_codes(code: int, told: int) -> None:
    assert lifted(code) == told


@pytest.mark.parametrize(
    ("program", "code"),
    [("exit 0", 0), ("exit 1", 201), ("exit 138", 138), ("kill -9 $$", 138), ("kill $$", 143)],
)
def test_of_a_command(program: str, code: int) -> None:
    assert subprocess.run([*TASK, "sh", "-c", program]).returncode == code


def test_it_stays_until_the_command_has_ended() -> None:
    program = "trap 'echo saved; exit 143' TERM; echo up; while :; do sleep 0.05; done"
    task = subprocess.Popen(
        [*TASK, "sh", "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert task.stdout is not None
    assert task.stdout.readline() == "up\n"
    os.killpg(task.pid, signal.SIGTERM)  # As Slurm does it: to all of its processes.
    assert task.stdout.read() == "saved\n"
    assert task.wait() == 143
    task.stdout.close()


def test_a_program_that_is_not_there_is_for_good() -> None:
    done = subprocess.run([*TASK, "no-such-program"], capture_output=True, text=True)
    assert done.returncode == 202
    assert done.stderr.startswith("tfdist: task: 'no-such-program' cannot be run (")
    assert done.stderr.count("\n") == 1


def test_without_a_command() -> None:
    done = subprocess.run(TASK, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "tfdist: task: no command given; add '-- COMMAND'\n"
