"""TensorFlow's port of a job on this machine is reached from this machine only."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.chaos.outside import make_outside
from tests.tasks import run_tasks
from tfdist.cluster import Cluster
from tfdist.strategy import private_port
from tfdist.strategy.private_port import close_to_others

OUTSIDE = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()
    print("reached")
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def outside():
    """Another network namespace."""
    with make_outside() as made:
        yield made


def reach(outside, port: int) -> str:
    command = outside.command(sys.executable, "-c", OUTSIDE, outside.address, str(port))
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()


def cluster_of(*addresses: str) -> Cluster:
    return Cluster.from_cluster_spec({"worker": list(addresses)}, "worker", 0)


def test_a_port_is_closed_to_others_and_open_here(outside):
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        assert reach(outside, port) == "reached"
        assert close_to_others(cluster_of(f"127.0.0.1:{port}", "127.0.0.1:1"))
        assert reach(outside, port) != "reached"
        socket.create_connection(("127.0.0.1", port), timeout=10).close()


def test_a_port_that_others_need_stays_open(outside):
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        assert not close_to_others(cluster_of(f"127.0.0.1:{port}", "10.78.0.2:1"))
        assert reach(outside, port) == "reached"


def test_a_port_that_cannot_be_closed_is_warned_of(monkeypatch):
    said = []
    monkeypatch.setattr(
        private_port.LOGGER, "warning", lambda text, *given: said.append(text % given)
    )
    monkeypatch.setattr(private_port, "_LOOPBACK", "no-such-interface")
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        assert not close_to_others(cluster_of(f"127.0.0.1:{port}", "127.0.0.1:1"))
    (line,) = said
    assert line.startswith(f"worker/0: TensorFlow's port {port} is open on ")
    assert "\n" not in line


PROGRAM = """
import os, subprocess, sys
import tfdist

cluster = tfdist.Cluster.from_environment()
if tfdist.serve(cluster):
    raise SystemExit
strategy = tfdist.build_strategy("auto", cluster)
name, address = os.environ["OUTSIDE"].split()
code = os.environ["CODE"]
for members in cluster.jobs.values():
    for task in members:
        port = task.rpartition(":")[2]
        for command in (["ip", "netns", "exec", name], []):
            run = [*command, sys.executable, "-c", code, address if command else "127.0.0.1", port]
            said = subprocess.run(run, capture_output=True, text=True, timeout=60).stdout.strip()
            print("TRIED", bool(command), said, flush=True)
"""


@pytest.mark.cluster
@pytest.mark.parametrize("jobs", [{"worker": 2}, {"chief": 1, "worker": 1, "ps": 1}])
def test_nobody_outside_reaches_a_job_on_this_machine(
    outside, jobs, tmp_path, monkeypatch, pytestconfig
):
    monkeypatch.setenv("OUTSIDE", " ".join(outside))
    monkeypatch.setenv("CODE", OUTSIDE)
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath), prepend=":")
    ends = run_tasks(tmp_path, PROGRAM, jobs)
    tried = []
    for task, (code, output) in ends.items():
        assert code == 0, f"{task}: {output}"
        tried += [line.split()[1:] for line in output.splitlines() if line.startswith("TRIED")]
    assert len(tried) >= 2 * sum(jobs.values())
    for from_outside, said in tried:
        assert (said == "reached") is (from_outside == "False")
