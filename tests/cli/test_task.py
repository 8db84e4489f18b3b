"""`tfdist task`: what srun learns of a command's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfdist.cli.task import encode_exit_code

TASK = [sys.executable, "-m", "tfdist", "task", "--"]


@pytest.mark.parametrize(
    ("code", "encoded"),
    [(0, 0), (1, 201), (2, 202), (55, 255), (127, 201), (138, 138), (143, 128), (250, 199)]
    + [(-15, 128), (-9, 138), (-11, 138), (128, 138), (129, 129)],
)
def test_codes(code: int, encoded: int) -> None:
    assert encode_exit_code(code) == encoded


@pytest.mark.parametrize(
    ("program", "code"),
    [("exit 0", 0), ("exit 1", 201), ("kill -9 $$", 138), ("kill $$", 128)],
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
    assert task.wait() == 128
    task.stdout.close()


def test_no_signal_is_its_end() -> None:
    """Slurm may end the tasks of a step at the moment at which this one ends by itself."""
    task = subprocess.Popen(
        [*TASK, "sh", "-c", "echo up; sleep 0.2; exit 138"], stdout=subprocess.PIPE
    )
    assert task.stdout is not None
    assert task.stdout.readline() == b"up\n"
    while task.poll() is None:
        task.terminate()
    assert task.wait() == 138
    task.stdout.close()


def test_a_command_that_ignores_sigterm_is_killed() -> None:
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True)"
    command = [sys.executable, "-c", f"{program}; time.sleep(100)"]
    task = subprocess.Popen([*TASK[:-1], "--grace", "0.5", "--", *command], stdout=subprocess.PIPE)
    assert task.stdout is not None
    assert task.stdout.readline() == b"up\n"
    task.terminate()
    began = time.monotonic()
    assert task.wait() == 138
    assert 0.4 < time.monotonic() - began < 20
    task.stdout.close()


def test_one_that_lost_a_peer_lets_that_one_end_first() -> None:
    """Otherwise Slurm would stop the peer before its code, of a user's mistake, is known."""
    program = """
import sys, time
from tfdist.cli import task
task._LINGER = float(sys.argv[1])
began = time.monotonic()
code = task.main(["--", "sh", "-c", "echo up; exit 138"])
print(code, time.monotonic() - began > 0.9)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run([*command, "1"], capture_output=True, text=True)
    assert done.stdout == "up\n138 True\n"
    # Until it is asked to stop too.
    task = subprocess.Popen([*command, "1000"], stdout=subprocess.PIPE)
    assert task.stdout is not None
    assert task.stdout.readline() == b"up\n"
    task.terminate()
    assert task.stdout.readline().startswith(b"138 ")
    assert task.wait() == 0
    task.stdout.close()


def test_what_is_for_good_is_noted(tmp_path: Path) -> None:
    record = tmp_path / "ends"
    for program in ("exit 0", "exit 139", "exit 143", "exit 1", "exit 2"):
        subprocess.run([*TASK[:-1], "--record", str(record), "--", "sh", "-c", program])
    assert record.read_text() == "201\n202\n"
    nowhere = ["--record", str(tmp_path / "not" / "there"), "--", "sh", "-c", "exit 1"]
    assert subprocess.run([*TASK[:-1], *nowhere]).returncode == 201


def test_a_log_has_the_name_of_its_task(tmp_path: Path) -> None:
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "n1",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_TASKS_PER_NODE": "3",
        "TFDIST_ROLES": "chief:1,ps:1,worker:1",
    }
    logs, program = tmp_path / "logs", "echo $SLURM_PROCID; echo e >&2"
    for rank in "012":
        done = subprocess.run(
            [*TASK[:-1], "--log-dir", str(logs), "--", "sh", "-c", program],
            env={**os.environ, **step, "SLURM_PROCID": rank},
            capture_output=True,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    texts = {path.name: path.read_text() for path in logs.iterdir()}
    assert texts == {"chief-0.log": "0\ne\n", "ps-0.log": "1\ne\n", "worker-0.log": "2\ne\n"}
    done = subprocess.run(
        [*TASK[:-1], "--log-dir", str(logs), "--", "true"],
        env={**os.environ, **step, "SLURM_PROCID": "9"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 202
    assert done.stderr.startswith("tfdist: SLURM_PROCID: 9 is out of range")


def test_a_program_that_is_not_there_is_for_good() -> None:
    done = subprocess.run([*TASK, "no-such-program"], capture_output=True, text=True)
    assert done.returncode == 202
    assert done.stderr.startswith("tfdist: task: 'no-such-program' cannot be run (")
    assert done.stderr.count("\n") == 1


def test_without_a_command() -> None:
    done = subprocess.run(TASK, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "tfdist: task: no command given; add '-- COMMAND'\n"
