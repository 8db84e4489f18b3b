"""The processes of a benchmark: where they run, what they return, and that they end with it."""

from __future__ import annotations

import json
import subprocess
import sys

import psutil
import pytest

from tfdist.benchmark import processes
from tfdist.benchmark.processes import LOOPBACK, NetworkHost, calling, started
from tfdist.errors import TfdistError


def test_processes_that_compute_have_their_own_cores(monkeypatch):
    monkeypatch.setattr(processes, "usable_cores", lambda: [4, 5, 6, 7])
    tasks = processes._tasks({"chief": 1, "worker": 2, "ps": 1}, [LOOPBACK])
    assert [(name, cores) for name, _, cores, _ in tasks] == [
        ("chief-0", [4, 5, 6, 7]),
        ("worker-0", [4, 5]),
        ("worker-1", [6, 7]),
        ("ps-0", [4, 5, 6, 7]),
    ]
    assert tasks[1][1]["OMP_NUM_THREADS"] == "2"
    config = json.loads(tasks[1][1]["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 0}
    assert {role: len(members) for role, members in config["cluster"].items()} == {
        "chief": 1,
        "worker": 2,
        "ps": 1,
    }
    ((_, environment, cores, _),) = processes._tasks({"worker": 1}, [LOOPBACK])
    assert cores == [4, 5, 6, 7]
    assert "TF_CONFIG" not in environment


def test_hosts_are_taken_in_turn():
    hosts = [
        NetworkHost("10.77.0.1", "a", ("enter", "a")),
        NetworkHost("10.77.0.2", "b", ("enter", "b")),
    ]
    tasks = processes._tasks({"worker": 2}, hosts)
    assert [host for *_, host in tasks] == hosts
    for _, environment, _, host in tasks:
        cluster = json.loads(environment["TF_CONFIG"])["cluster"]
        assert [address.split(":")[0] for address in cluster["worker"]] == [
            h.address for h in hosts
        ]
        assert environment["MASTER_ADDR"] == "10.77.0.1"
        assert environment["INTERFACE"] == host.interface


@pytest.mark.cluster
def test_the_result_is_what_the_function_returns_in_the_first_task():
    with started(*calling("builtins:dict", {"a": 1}), {"worker": 2}) as group:
        assert group.result("dict", 60) == {"a": 1}


@pytest.mark.cluster
def test_a_function_that_fails_is_an_error_with_the_last_lines():
    failing = calling("operator:not_there", {})
    with (
        started(*failing, {"worker": 1}) as group,
        pytest.raises(TfdistError, match="(?s)'x' did not finish\n-- worker-0\n.*not_there"),
    ):
        group.result("x", 60)


@pytest.mark.cluster
def test_processes_end_with_the_benchmark_that_started_them(tmp_path):
    waits = tmp_path / "waits"  # In the place of an interpreter.
    waits.write_text("#!/bin/sh\nexec sleep 600\n")
    waits.chmod(0o755)
    program = (
        "import sys, time; from tfdist.benchmark import processes\n"
        "with processes.started([sys.argv[1]], {}, {'worker': 2}) as group:\n"
        "    print(*(process.pid for process in group.processes.values()), flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(waits)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout is not None
        started = [psutil.Process(int(pid)) for pid in benchmark.stdout.readline().split()]
        assert len(started) == 2 and all(process.is_running() for process in started)
        benchmark.terminate()
        assert benchmark.wait(timeout=30) == 143
    assert not any(process.is_running() for process in started)
