"""A program continues when the reader of its output has gone."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import os, sys
from tfdist.runtime.lost_output import survive_broken_pipe

survive_broken_pipe()
survive_broken_pipe()
print("first", flush=True)
sys.stdin.readline()
for number in range(1000):
    print("x" * 100, flush=True)
os.write(1, b"a library's line")
assert sys.stdout.isatty() is False
print("done", file=sys.stderr)
"""


def run(stdout):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_reader_that_goes_away_ends_nothing():
    process = run(subprocess.PIPE)
    assert process.stdout.readline() == "first\n"
    process.stdout.close()
    process.stdout = None
    _, errors = process.communicate("go\n", timeout=60)
    assert process.returncode == 0
    assert errors.splitlines() == [
        "tfdist: stdout cannot be written to (Broken pipe); training continues without it",
        "done",
    ]


def test_a_full_disk_ends_nothing():
    with open("/dev/full", "w") as full:
        process = run(full)
        _, errors = process.communicate("go\n", timeout=60)
    assert process.returncode == 0
    assert "No space left" in errors
    assert errors.endswith("done\n")


def test_a_closed_stdout_ends_nothing():
    code = """if True:
        import sys
        from tfdist.runtime.lost_output import survive_broken_pipe
        survive_broken_pipe()
        print("nobody")
        sys.exit(3)
    """
    process = subprocess.run(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        preexec_fn=lambda: os.close(1),
    )
    assert (process.returncode, process.stderr) == (3, "")
