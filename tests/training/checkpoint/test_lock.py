"""A directory has one job at a time, whatever became of the one before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tfdist.errors import ConfigError
from tfdist.training.checkpoint import lock as module
from tfdist.training.checkpoint.lock import DirectoryLock

HOLDER = """
import sys, time
from pathlib import Path
from tfdist.training.checkpoint.lock import DirectoryLock

lock = DirectoryLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
time.sleep(float(sys.argv[2]))
lock.release()
time.sleep(1000)
"""


@pytest.fixture
def hold(tmp_path):
    """Starts a process that holds the lock of a directory for some seconds, and then lives on."""
    processes = []

    def start(seconds=1000):
        command = [sys.executable, "-c", HOLDER, str(tmp_path), str(seconds)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_another_job_is_named_and_refused(tmp_path, hold, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.3)
    process = hold()
    with pytest.raises(ConfigError, match=rf"in use by another job \(process {process.pid} on "):
        DirectoryLock(tmp_path).acquire()


def test_one_that_is_about_to_end_is_waited_for(tmp_path, hold):
    hold(seconds=1.0)
    DirectoryLock(tmp_path).acquire()


def test_a_killed_job_holds_nothing(tmp_path, hold):
    process = hold()
    process.send_signal(signal.SIGKILL)
    process.wait()
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    lock.release()


def test_a_process_may_hold_it_more_than_once(tmp_path, hold, monkeypatch):
    first, second = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    first.acquire()
    second.acquire()
    first.acquire()
    first.release()
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.01)
    code = "import sys; from tfdist.training.checkpoint import lock; "
    code += "lock._PATIENCE_SECONDS = 0.1; "
    code += "lock.DirectoryLock(__import__('pathlib').Path(sys.argv[1])).acquire()"
    command = [sys.executable, "-c", code, str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert f"in use by another job (process {os.getpid()} on" in refused.stderr
    second.release()
    second.release()
    assert subprocess.run(command, capture_output=True).returncode == 0


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, caplog):
    def none(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(module.fcntl, "lockf", none)
    said = []
    monkeypatch.setattr(module.LOGGER, "warning", lambda text, *args: said.append(text % args))
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    lock.release()
    assert len(said) == 1 and "has no locks (Operation not supported)" in said[0]
