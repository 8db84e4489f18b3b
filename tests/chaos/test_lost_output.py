"""A job whose output is lost in the midst of training ends as undisturbed, and with exit code 0."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.harness import Programs, size, wait
from tests.chaos.test_recovery import JOB, end_of, start

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

EPOCHS = 3
NOISE = 20_000  # bytes a step: a pipe holds three steps of it
WAYS = ("reader gone", "reader asleep", "full disk", "full disk under the logs", "closed terminal")
END_SECONDS = 240.0


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("needs root, to mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def run(way: str, folder: Path, logs: Path) -> tuple[int, str, bool]:
    """Runs a job whose output is lost after its tenth step.

    Returns:
        Its exit code; what it said on stderr; whether the fault was seen to happen.
    """
    flags = ["--workers", "2", "--grace", "4"]
    if way == "full disk under the logs":
        flags += ["--log-dir", str(logs)]
    env = {
        **os.environ,
        "DIR": str(folder / "checkpoints"),
        "EPOCHS": str(EPOCHS),
        "EVERY": "20",
        "PAUSE": "0.02",
        "NOISE": str(NOISE),
        "RESULT": str(folder / "result"),
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "tfdist", "launch", *flags, "--", "python", JOB]
    reading, writing = os.openpty() if way == "closed terminal" else os.pipe()
    errors = folder / "errors"
    with errors.open("wb") as stderr:
        if way == "full disk":
            os.close(writing)
            writing = os.open(logs / "stdout", os.O_WRONLY | os.O_CREAT)
        with open(writing, "wb") as stdout:
            process = subprocess.Popen(
                command,
                env=env,
                stdin=stdout if way == "closed terminal" else subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=_take_terminal if way == "closed terminal" else None,
            )
    happened = False
    try:
        if way in ("reader gone", "reader asleep", "closed terminal"):
            seen = b""
            while b"STEP 10" not in seen:
                more = os.read(reading, 1 << 16)
                assert more, errors.read_text()
                seen = seen[-100:] + more
            happened = process.poll() is None
            if way != "reader asleep":
                os.close(reading)
                reading = -1
        until = time.monotonic() + END_SECONDS
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        if way.startswith("full disk"):
            file = logs / "stdout" if way == "full disk" else logs / "worker-0.log"
            happened = 0 < file.stat().st_size <= 64 << 10
        return process.wait(1), errors.read_text(errors="replace"), happened
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if reading >= 0:
            os.close(reading)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize("way", WAYS[: size(0, 5)])
def test_lost_output_changes_nothing(programs: Programs, tmp_path: Path, way: str) -> None:
    want = end_of(start(programs, tmp_path / "undisturbed", EPOCHS, 0))
    with contextlib.ExitStack() as stack:
        logs = tmp_path / "logs"
        if way.startswith("full disk"):
            stack.enter_context(small_disk(logs))
        code, said, happened = run(way, tmp_path, logs)
    assert happened, f"{way} did not happen\n{said}"
    assert code == 0, said
    got = wait((tmp_path / "result").read_text)
    assert got.partition("END ")[2] == want
    lines = [line for line in said.splitlines() if "continues without it" in line]
    assert len(lines) == 1 or way in ("closed terminal", "reader asleep"), said
    print(f"{way}: same hash; {lines}")
