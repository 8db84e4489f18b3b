"""Heartbeats: what they hold, how often they are written, and that nobody reads half of one."""

import json
import os
import signal
import subprocess
import sys
import time

from tfdist.runtime import heartbeat
from tfdist.runtime.heartbeat import HeartbeatWriter


def test_a_beat_shows_what_the_task_does(tmp_path):
    path = str(tmp_path / "worker-0")
    assert heartbeat.read(path) is None
    before = time.time()
    HeartbeatWriter(path).write("training", 2, 40, step_seconds=0.5)
    beat = heartbeat.read(path)
    assert (beat.phase, beat.epoch, beat.step, beat.step_seconds) == ("training", 2, 40, 0.5)
    assert before <= beat.time <= time.time()
    assert (beat.pid, beat.fed) == (os.getpid(), 0.0)
    assert os.listdir(tmp_path) == ["worker-0"]


def test_a_phase_is_written_at_once_and_steps_a_few_times_a_second(tmp_path):
    path = str(tmp_path / "beat")
    writer = HeartbeatWriter(path)
    seen = set()
    end = time.monotonic() + 0.5
    step = 0
    while time.monotonic() < end:
        step += 1
        writer.write("training", 0, step)
        seen.add(heartbeat.read(path).step)
    assert 2 <= len(seen) <= 4
    writer.write("evaluating", 0, 0)
    assert heartbeat.read(path).phase == "evaluating"


def test_the_input_has_a_file_of_its_own(tmp_path):
    writer = HeartbeatWriter(str(tmp_path / "beat"))
    writer.write("training")
    with open(writer.fed_path, "w"):
        pass
    assert abs(heartbeat.read(writer.path).fed - time.time()) < 5


def test_nobody_asked(tmp_path, monkeypatch):
    monkeypatch.delenv("TFDIST_HEARTBEAT", raising=False)
    writer = HeartbeatWriter()
    writer.write("training")
    assert (writer.path, writer.fed_path) == ("", "")


def test_what_cannot_be_written_or_read_is_passed_over(tmp_path):
    HeartbeatWriter(str(tmp_path / "absent" / "beat")).write("training")
    for text in ("", "{", "[]", json.dumps({"unknown": 1})):
        (tmp_path / "beat").write_text(text)
        assert heartbeat.read(str(tmp_path / "beat")) is None


def test_sigusr1_prints_the_stacks(tmp_path):
    program = (
        "import os, signal\n"
        "from tfdist.runtime.heartbeat import HeartbeatWriter\n"
        "HeartbeatWriter()\n"
        "def where_it_hangs():\n"
        "    os.kill(os.getpid(), signal.SIGUSR1)\n"
        "where_it_hangs()\n"
        "print('goes on')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "TFDIST_HEARTBEAT": str(tmp_path / "beat")},
    )
    assert result.returncode == 0 != signal.SIGUSR1
    assert "in where_it_hangs" in result.stderr
    assert result.stdout == "goes on\n"


def test_a_task_that_waits_for_a_peer_records_it(tmp_path, monkeypatch):
    path = str(tmp_path / "beat")
    heartbeat.record_waiting(True)  # No file is named.
    monkeypatch.setenv("TFDIST_HEARTBEAT", path)
    HeartbeatWriter().write("training")
    assert not heartbeat.read(path).waits
    before = heartbeat.read(path)
    heartbeat.record_waiting(True)
    assert heartbeat.read(path).waits
    assert heartbeat.read(path) == before  # To wait is no progress.
    heartbeat.record_waiting(False)
    heartbeat.record_waiting(False)
    assert not heartbeat.read(path).waits
