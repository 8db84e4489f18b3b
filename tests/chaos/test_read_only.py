"""A root file system that is read-only, as in hardened pods: jobs run, and need no folder."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from tests.chaos.harness import JOB, Programs, size

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

# Only in a mount namespace of its own; what is mounted below / is made read-only too.
READ_ONLY = (
    "mount --make-rprivate / && mount --rbind / / && "
    "awk '$5 !~ \"^/(proc|sys|dev)\" {print $5}' /proc/self/mountinfo | sort -u | "
    'while read -r place; do mount -o remount,bind,ro "$place" || exit 9; done && '
    "! touch /tmp/x 2>/dev/null && echo 'ALL IS READ-ONLY' && exec "
)


def in_read_only(*words: str) -> list[str]:
    return ["unshare", "--mount", "bash", "-c", READ_ONLY + shlex.join(words)]


@pytest.fixture(scope="module", autouse=True)
def _can_be_made() -> None:
    words = in_read_only("true")
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("needs root, to make file systems read-only in a mount namespace")


@pytest.mark.parametrize("jobs", ["--workers 2", "--chief 1 --ps 1 --workers 1"][: size(0, 2)])
def test_a_job_runs_where_nothing_can_be_written(programs: Programs, jobs: str) -> None:
    words = [sys.executable, "-m", "tfdist", "launch", *jobs.split(), "--", "python", JOB]
    job = programs.start(in_read_only(*words), {"STEPS": "20", "EPOCHS": "1"})
    assert job.end() == 0, job.text()
    assert job.find("ALL IS READ-ONLY")
    assert job.find(r"END 20 "), job.text()
    assert not job.find("Traceback"), job.text()


def test_a_mistake_is_still_one_line(programs: Programs) -> None:
    words = (sys.executable, "-m", "tfdist", "launch", "--workers", "1", "--", "/no/such/program")
    job = programs.start(in_read_only(*words))
    assert job.end() == 2, job.text()
    assert len(job.lines) == 2, job.text()
