"""Forked programs are those that a start would have been."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests import forked

PRINTS = """
import os, sys
print(sys.argv, os.environ["MARK"], os.getcwd(), __name__, "tensorflow" in sys.modules)
sys.exit(3)
"""
WAITS = """
import os, time
print(os.getpid(), flush=True)
time.sleep(1000)
"""
DRAWS = """
from tensorflow.python.client import device_lib
print(device_lib.list_local_devices()[0].incarnation)
"""


@pytest.mark.parametrize("how", ["script", "code"])
def test_arguments_environment_folder_and_exit_code(tmp_path, how):
    script = tmp_path / "script.py"
    script.write_text(PRINTS)
    words = [str(script)] if how == "script" else ["-c", PRINTS]
    command = [sys.executable, *words, "one", "two"]
    options = {"env": {**os.environ, "MARK": "mark"}, "cwd": tmp_path}
    done = forked.run(command, timeout=60, capture_output=True, text=True, **options)
    assert done.returncode == 3, done.stderr
    argv = [words[0], "one", "two"]
    assert done.stdout.split("\n")[0] == f"{argv} mark {tmp_path} __main__ True"


def test_an_exception_is_a_traceback_and_exit_code_1():
    done = forked.run(
        [sys.executable, "-c", "raise KeyError(7)"], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.endswith("KeyError: 7\n")


def test_one_that_is_killed_has_the_number_of_the_signal():
    process = forked.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_who_stands_for_one_takes_its_signals_along(number):
    command = [*forked.python(), "-c", WAITS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(60) == -number
    end = time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < end, "the program outlived who stands for it"
        time.sleep(0.02)


def test_tensorflow_draws_other_numbers_in_each():
    """Tasks of one cluster name functions by them."""
    drawn = [
        forked.run([sys.executable, "-c", DRAWS], timeout=60, capture_output=True, text=True).stdout
        for _ in range(2)
    ]
    assert all(drawn) and drawn[0] != drawn[1]
