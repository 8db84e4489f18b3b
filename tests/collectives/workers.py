"""Starts the tasks of a cluster on this machine, as plain processes, and sees each of them end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tfdist.launcher.ports import free_ports

SECONDS = 120.0  # For all to end: two of them on two cores are slow.


def run_workers(folder: Path, program: str) -> list[tuple[int, str]]:
    """Runs `program` as each of two workers; returns the exit code and the output of each."""
    ends = run_tasks(folder, program, {"worker": 2})
    return [ends["worker/0"], ends["worker/1"]]


def run_tasks(folder: Path, program: str, jobs: dict[str, int]) -> dict[str, tuple[int, str]]:
    """Runs `program` as each task of a cluster, without the launcher.

    Args:
        folder: Where the outputs go.
        program: Python code.
        jobs: How many tasks each job has.

    Returns:
        The exit code and the output of each task; the code is that of SIGKILL for one that did
        not end in time.
    """
    ports = iter(free_ports(sum(jobs.values())))
    cluster = {job: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for job, n in jobs.items()}
    script = folder / "program.py"
    script.write_text(program)
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for job, addresses in cluster.items():
            for index in range(len(addresses)):
                task = {"cluster": cluster, "task": {"type": job, "index": index}}
                with (folder / f"{job}-{index}.log").open("wb") as output:
                    processes[f"{job}/{index}"] = subprocess.Popen(
                        [sys.executable, str(script)],
                        env={**os.environ, "TF_CONFIG": json.dumps(task), "OMP_NUM_THREADS": "1"},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
        end = time.monotonic() + SECONDS
        while any(p.poll() is None for p in processes.values()) and time.monotonic() < end:
            time.sleep(0.1)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def output_of(task: str) -> str:
        return (folder / f"{task.replace('/', '-')}.log").read_text(errors="replace")

    return {task: (process.returncode, output_of(task)) for task, process in processes.items()}
