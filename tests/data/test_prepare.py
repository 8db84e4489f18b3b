"""One process prepares; the others wait; a killed one harms nobody."""

from __future__ import annotations

import subprocess
import time

import pytest

from tfdist.data.lock import exclusive
from tfdist.errors import ConfigError, PeerError

LOAD = """
import sys
from tfdist.data.digits import digits_dataset_builder as module
from tfdist.data import load
real = module.Builder._generate_examples
def generate(self, part):
    with open(sys.argv[1] + "/generated", "a") as log:
        print(part, file=log)
    {hook}
    yield from real(self, part)
module.Builder._generate_examples = generate
source = load("digits", data_dir=sys.argv[1])
rows = sum(len(labels) for _, labels in source.train(500).dataset())
print("read", rows, flush=True)
"""
HOLD = """
import sys, time
from pathlib import Path
from tfdist.data.lock import exclusive
with exclusive(Path(sys.argv[1]), task="x", timeout=0):
    print("held", flush=True)
    time.sleep(600)
"""


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    raise AssertionError(f"ended without {word!r}: {process.communicate()[1]}")


@pytest.mark.cluster
def test_of_processes_started_at_once_one_prepares(start, tmp_path):
    processes = [start(LOAD.format(hook=""), tmp_path) for _ in range(3)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert sorted((tmp_path / "generated").read_text().split()) == ["test", "train"]
    # Nothing that TFDS prints while it prepares reaches the terminal.
    assert [out.splitlines() for out, _ in outputs] == [["read 1500"]] * 3
    assert not list(tmp_path.rglob("*incomplete*"))


@pytest.mark.cluster
def test_a_preparer_that_is_killed_leaves_nothing_behind(start, tmp_path):
    hook = '__import__("time").sleep(600)'
    first = start(LOAD.format(hook=hook), tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "generated").exists():
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list(tmp_path.rglob("*incomplete*"))  # what the kill leaves
    second = start(LOAD.format(hook=""), tmp_path)
    assert second.stderr is not None
    for line in second.stderr:  # it waits, and names for whom
        if "waiting for" in line:
            assert f"process {first.pid} on " in line
            assert "to prepare digits/1.0.0 in " in line
            break
    first.kill()
    out, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    assert "read 1500" in out
    assert not list(tmp_path.rglob("*incomplete*"))


def test_waiting_ends_at_the_deadline_and_names_the_holder(start, tmp_path):
    path = tmp_path / "lock"
    holder = start(HOLD, path)
    wait_for(holder, "held")
    message = rf"waited 0.3 s for process {holder.pid} on .* to prepare digits in /data"
    with (
        pytest.raises(PeerError, match=message),
        exclusive(path, task="digits in /data", timeout=0.3),
    ):
        pass
    holder.kill()
    holder.wait()
    with exclusive(path, task="digits", timeout=5):
        pass


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match="choose another data_dir"),
        exclusive(tmp_path / "file" / "lock", task="x", timeout=0),
    ):
        pass
