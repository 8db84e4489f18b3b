"""SIGTERM to a task that is process 1, as in a container: it ends with 143, in under 5 s."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.chaos.harness import FULL

_AS_ONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_TRAIN = ("-m", "tfdist", "train", "--model", "small_cnn", "--epochs", "500")


@functools.cache
def _allowed() -> bool:
    try:
        return subprocess.run([*_AS_ONE, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


# The seconds that it may take; next to the suite's other processes it may take far more.
SOON = 5.0 if FULL else 60.0

pytestmark = pytest.mark.skipif(
    not _allowed(), reason="this user may not make a process number 1 (unshare --pid)"
)


class ProcessOne:
    """A Python that is process 1 of its own namespace.

    Args:
        log: Where it prints to.
        arguments: Python's.
        env: Variables besides those of this process.
    """

    def __init__(self, log: Path, *arguments: str, **env: str) -> None:
        self.log = log
        with log.open("wb") as file:
            self._unshare = subprocess.Popen(
                [*_AS_ONE, sys.executable, *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
            )

    @property
    def process(self) -> psutil.Process:
        """The process as it is seen from outside."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            for child in psutil.Process(self._unshare.pid).children():
                if "unshare" not in child.name():
                    return child
            time.sleep(0.01)
        raise AssertionError("it did not start")

    def said(self, text: str, seconds: float = 120.0) -> None:
        """Waits until it has printed a text."""
        until = time.monotonic() + seconds
        while text not in self.log.read_text():
            assert self._unshare.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.05)

    def listens(self) -> None:
        """Waits until SIGTERM would not be dropped any more: it, or its child, catches it."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            one = self.process
            for process in (one, *one.children()):
                with contextlib.suppress(OSError):  # It has ended meanwhile.
                    status = Path(f"/proc/{process.pid}/status").read_text()
                    mask = re.search(r"^SigCgt:\s(\w+)$", status, re.MULTILINE)[1]
                    if int(mask, 16) >> (signal.SIGTERM - 1) & 1:
                        return
            time.sleep(0.01)
        raise AssertionError("it drops SIGTERM")

    def end(self, within: float = SOON) -> int:
        """Sends SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._unshare.wait(timeout=within)

    def kill(self) -> None:
        """Ends it whatever it does."""
        self._unshare.kill()
        self._unshare.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[functools.partial[ProcessOne]]:
    started: list[ProcessOne] = []

    def go(*arguments: str, **env: str) -> ProcessOne:
        started.append(ProcessOne(tmp_path / f"{len(started)}.log", *arguments, **env))
        return started[-1]

    yield go
    for process in started:
        process.kill()


def configs(**counts: int) -> dict[str, str]:
    """The TF_CONFIG of each task of a cluster on this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(sum(counts.values()))]
    addresses = [f"127.0.0.1:{taken.getsockname()[1]}" for taken in sockets]
    for taken in sockets:
        taken.close()
    cluster = {role: [addresses.pop() for _ in range(count)] for role, count in counts.items()}
    return {
        f"{role}/{index}": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
        for role, members in cluster.items()
        for index in range(len(members))
    }


def test_without_tfdist_the_kernel_drops_it(start):
    process = start("-c", "import time; print('up'); time.sleep(100)")
    process.said("up")
    with pytest.raises(subprocess.TimeoutExpired):
        process.end(within=1.0)


def test_in_a_program_that_waits_in_c(start):
    process = start(
        "-c",
        "import ctypes, tfdist.runtime.sigterm as s; s.end_process_one(); print('up')\n"
        "ctypes.CDLL(None).system(b'sleep 100')",
    )
    process.said("up")
    assert process.end() == 143
    assert "nothing was saved" in process.log.read_text()


def test_a_forked_child_ends_alone(start):
    process = start(
        "-c",
        "import os, signal, time, tfdist.runtime.sigterm as s; s.end_process_one()\n"
        "child = os.fork()\n"
        "if not child: time.sleep(100)\n"
        "time.sleep(0.5); os.kill(child, signal.SIGTERM)\n"
        "print('ended by', os.waitpid(child, 0)[1]); time.sleep(100)",
    )
    process.said("ended by 15")
    time.sleep(0.3)
    assert process.process.is_running()
    assert process.end() == 143


_LOSES = (
    "from tfdist.errors import PeerError\n"
    "from tfdist.runtime import excepthook, sigterm\n"
    "excepthook.install(connected=True); sigterm.end_process_one()\n"
    "raise PeerError('lost worker/1')\n"
)


def test_a_lost_peers_own_code_is_to_be_known_first(start):
    """Kubernetes acts on the first pod that ends: that one may have failed for good."""
    process = start("-c", _LOSES)
    process.said("tfdist: lost worker/1")
    with pytest.raises(subprocess.TimeoutExpired):
        process._unshare.wait(timeout=2)
    assert process.end() == 143


def test_after_a_lost_peer_it_ends_by_itself(start):
    process = start("-c", f"from tfdist.runtime import excepthook as e; e._LINGER = 1.0\n{_LOSES}")
    assert process._unshare.wait(timeout=60) == 138


def test_a_handler_of_the_program_stays(start):
    process = start(
        "-c",
        "import signal, sys, time, tfdist.runtime.sigterm as s\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); s.end_process_one()\n"
        "print('up'); time.sleep(100)",
    )
    process.said("up")
    assert process.end() == 7


def test_a_second_one_while_saving_ends_at_once(start):
    process = start(
        "-c",
        "import ctypes, time, tfdist.runtime.sigterm as s; s.end_process_one()\n"
        "with s.Sigterm() as asked:\n"
        "    print('up')\n"
        "    while not asked.came: time.sleep(0.1)\n"
        "    print('saving')\n"
        "    ctypes.CDLL(None).system(b'sleep 100')",
    )
    process.said("up")
    process.process.send_signal(signal.SIGTERM)
    process.said("saving")
    assert process.end() == 143
    assert "came again" in process.log.read_text()


def test_one_that_comes_too_late_to_save_ends_it_too(start):
    process = start(
        "-c",
        "import os, signal, time, tfdist.runtime.sigterm as s; s.end_process_one()\n"
        "with s.Sigterm(): os.kill(1, signal.SIGTERM)\n"
        "time.sleep(100)",
    )
    assert process._unshare.wait(timeout=SOON) == 143


@pytest.mark.parametrize("seconds", [1.0, 2.0, 3.0])
def test_while_it_starts(start, seconds):
    process = start(*_TRAIN)
    process.listens()
    time.sleep(seconds)  # In `import tensorflow`, for the most part.
    assert process.end() == 143


def test_in_the_meeting(start):
    process = start(*_TRAIN, TF_CONFIG=configs(worker=2)["worker/0"])
    process.listens()
    time.sleep(1.5)
    assert process.end() == 143


@pytest.mark.cluster
def test_while_tensorflow_connects(start):
    """A peer that vanishes behind the meeting; TensorFlow holds Python's lock meanwhile."""
    config = configs(worker=2)
    program = (
        "from tfdist.runtime import process_one, sigterm\n"
        "process_one.continue_in_child(); sigterm.end_process_one()\n"
        "import tfdist; tfdist.build_strategy('multi_worker_mirrored'); print('built')\n"
    )
    process = start("-c", program, TF_CONFIG=config["worker/0"])
    peer = start(
        "-c",
        "import time; from tfdist.cluster import Cluster\n"
        "from tfdist.rendezvous.meeting import rendezvous\n"
        "rendezvous(Cluster.from_environment(), 100); print('met'); time.sleep(100)",
        TF_CONFIG=config["worker/1"],
    )
    peer.said("met")
    time.sleep(4)
    assert "built" not in process.log.read_text()
    assert process.end() == 143


@pytest.mark.parametrize(
    ("program", "code"),
    [("sys.exit(0)", 0), ("sys.exit(2)", 2), ("os.kill(os.getpid(), 9)", 137)],
)
def test_process_one_ends_as_its_child_does(start, program, code):
    before = "import os, sys; from tfdist.runtime.process_one import continue_in_child\n"
    process = start("-c", f"{before}continue_in_child(); assert os.getpid() != 1; {program}")
    assert process._unshare.wait(timeout=SOON) == code, process.log.read_text()


@pytest.mark.cluster
@pytest.mark.long
def test_in_training_that_saves_nothing(start):
    process = start(*_TRAIN)
    process.said("epoch 1/500 done")
    assert process.end() == 143
    assert "nothing was saved" in process.log.read_text()


@pytest.mark.cluster
@pytest.mark.long
def test_in_training_that_saves(start, tmp_path):
    process = start(*_TRAIN, "--checkpoint-dir", str(tmp_path / "saved"))
    process.said("epoch 1/500 done")
    assert process.end(within=60.0) == 143  # A step and a save, however busy the machine is.
    assert "which is saved; start again to continue" in process.log.read_text()
    assert os.listdir(tmp_path / "saved")


@pytest.mark.cluster
@pytest.mark.long
def test_in_a_collective_that_waits_for_a_peer(start):
    config = configs(worker=2)
    process = start(*_TRAIN, TF_CONFIG=config["worker/0"])
    peer = start(*_TRAIN, TF_CONFIG=config["worker/1"])
    process.said("epoch 1/500 done")
    for one in (peer.process, *peer.process.children(recursive=True)):
        one.suspend()
    time.sleep(1)
    assert process.end() == 143


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.parametrize("role", ["worker/0", "chief/0"])
def test_beside_parameter_servers(start, role):
    config = configs(chief=1, ps=1, worker=1)
    tasks = {name: start(*_TRAIN, TF_CONFIG=text) for name, text in config.items()}
    tasks["chief/0"].said("epoch 1/500 done")
    assert tasks[role].end() == 143


@pytest.mark.cluster
@pytest.mark.long
def test_ps_and_worker_serve_until_the_chief_has_saved(start, tmp_path):
    config = configs(chief=1, ps=1, worker=1)
    save = ("--checkpoint-dir", str(tmp_path / "saved"))
    tasks = {name: start(*_TRAIN, *save, TF_CONFIG=text) for name, text in config.items()}
    tasks["chief/0"].said("epoch 1/500 done")
    for role in ("ps/0", "worker/0"):
        tasks[role].process.send_signal(signal.SIGTERM)
    assert tasks["chief/0"].end(within=60.0) == 143
    assert "which is saved" in tasks["chief/0"].log.read_text()
    for role in ("ps/0", "worker/0"):
        assert tasks[role]._unshare.wait(timeout=30) == 143
