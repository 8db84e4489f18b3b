"""`tfdist doctor`: what is wrong is named, in a line, and the exit code shows it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked
from tfdist import cli
from tfdist.launcher.ports import free_ports

LAUNCH = [sys.executable, "-m", "tfdist", "launch"]
SOON = 120.0


def doctor() -> list[str]:
    return [*forked.python(), "-m", "tfdist", "doctor"]


def lines(out: str, task: str) -> dict[str, tuple[str, str]]:
    """Returns state and text of a task's findings, by check."""
    rows = re.findall(rf"^{task} +\| (ok|warning|FAILED) +(.{{12}}) (.*)$", out, re.MULTILINE)
    return {check.strip(): (state, text) for state, check, text in rows}


def alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *ports: int
) -> tuple[int, dict[str, tuple[str, str]]]:
    """Runs it as the first worker of a cluster whose others are not there."""
    config = {
        "cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]},
        "task": {"type": "worker", "index": 0},
    }
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    code = cli.main(["doctor", "--wait", "0.5", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert (printed["task"], printed["exit_code"]) == ("worker/0", code)
    return code, {f["check"]: (f["state"], f["text"]) for f in printed["findings"]}


def test_a_task_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = free_ports(2)
    code, found = alone(monkeypatch, capsys, first, second)
    assert code == 138
    assert found["own port"] == ("ok", f"{first} is free")
    state, text = found["meeting"]
    assert state == "FAILED" and f"worker/1 at 127.0.0.1:{second} is not there" in text


def test_a_port_that_is_taken_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, found = alone(monkeypatch, capsys, port, free_ports(1)[0])
    assert code == 2
    state, text = found["own port"]
    assert state == "FAILED" and f"the port {port}, which cannot be used" in text


def test_what_cannot_run_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TF_CONFIG", "nonsense")
    assert cli.main(["doctor"]) == 2
    captured = capsys.readouterr()
    assert captured.out.startswith("FAILED   cluster      TF_CONFIG: 'nonsense' is not JSON")
    assert captured.out.count("\n") == 1 and captured.err == ""


@pytest.mark.cluster
def test_a_worker_with_a_directory_of_its_own_is_named(tmp_path: Path) -> None:
    program = (
        'exec "$@" --checkpoint-dir "$0/$(echo "$TF_CONFIG" | grep -o "index.: [01]" | tail -c 2)"'
    )
    done = subprocess.run(
        [*LAUNCH, "--workers", "2", "bash", "-c", program, str(tmp_path), *doctor()],
        capture_output=True,
        text=True,
        timeout=SOON,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for task in ("worker/0", "worker/1"):
        found = lines(done.stdout, task)
        state, text = found.pop("directory")
        assert state == "warning"
        assert "worker/1 has another directory, without the file of worker/0" in text
        assert {state for state, _ in found.values()} == {"ok"}
        assert list(found) == [
            *("cluster", "strategy", "environment", "own address", "own port", "meeting"),
            *("devices", "connection", "versions", "clocks", "all-reduce", "step", "checkpoint"),
        ]
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]
    assert not any(os.listdir(tmp_path / name) for name in ("0", "1"))


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "tasks"),
    [
        (["--workers", "2"], ["worker/0", "worker/1"]),
        (["--chief", "1", "--ps", "1", "--workers", "1"], ["chief/0"]),
    ],
)
def test_a_directory_of_all_tasks_is_fine(
    tmp_path: Path, flags: list[str], tasks: list[str]
) -> None:
    done = subprocess.run(
        [*LAUNCH, *flags, *doctor(), "--checkpoint-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=SOON,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for task in tasks:
        found = lines(done.stdout, task)
        assert found["directory"][1].startswith(f"{tmp_path} is the same in ")
        assert {state for state, _ in found.values()} == {"ok"}
    assert os.listdir(tmp_path) == []


@pytest.mark.long
def test_a_directory_that_cannot_be_written_fails() -> None:
    done = subprocess.run(
        [*doctor(), "--checkpoint-dir", "/proc/none"], capture_output=True, text=True, timeout=SOON
    )
    assert done.returncode == 2
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("FAILED"))
    assert "worker/0 cannot write to it" in line or "this process cannot write to it" in line
    assert "step" in done.stdout and "checkpoint  " not in done.stdout
