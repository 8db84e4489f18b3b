"""Two machines, here two network namespaces, whose link is cut in the midst of training."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.harness import JOB, Program, Programs, wait

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

ADDRESSES = ("198.18.77.1", "198.18.77.2")  # a range for tests of networks
PORT = 21717
END_SECONDS = 90.0  # after the cut, for both sides to end or go on
EVERY = 10


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Machines:
    """Two namespaces and the link between them."""

    def __init__(self) -> None:
        self.names = [f"tfdist-{os.getpid()}-{side}" for side in "ab"]

    def __enter__(self) -> Machines:
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        a, b = self.names
        ip("link", "add", "wire", "netns", a, "type", "veth", "peer", "name", "wire", "netns", b)
        for name, address in zip(self.names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
        return self

    def cut(self) -> None:
        ip("-n", self.names[0], "link", "set", "wire", "down")

    def restore(self) -> None:
        ip("-n", self.names[0], "link", "set", "wire", "up")

    def reachable(self) -> bool:
        probe = f"import socket; socket.create_connection(({ADDRESSES[1]!r}, 1), timeout=1)"
        words = ["ip", "netns", "exec", self.names[0], sys.executable, "-c", probe]
        done = subprocess.run(words, capture_output=True, text=True)
        return "refused" in done.stderr  # Somebody is there to refuse.

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@pytest.fixture
def machines() -> Iterator[Machines]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and the ip command, to make network namespaces")
    try:
        with Machines() as both:
            yield both
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")


class Side:
    """One task, started again whenever it ends with a code that asks for it."""

    def __init__(
        self, programs: Programs, machines: Machines, index: int, folder: Path, pause: float
    ) -> None:
        self._programs = programs
        workers = [f"{address}:{PORT}" for address in ADDRESSES]
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        self._env = {
            "TF_CONFIG": json.dumps(config),
            "TFDIST_WAIT": "120",
            "DIR": str(folder),
            "EVERY": str(EVERY),
            "STEPS": "150",
            "EPOCHS": "1",
            "PAUSE": str(pause),
        }
        self._words = ["ip", "netns", "exec", machines.names[index], sys.executable, JOB]
        self.runs: list[Program] = []
        self.start()

    def start(self) -> None:
        self.runs.append(self._programs.start(self._words, self._env))

    def go_on(self) -> bool:
        """Starts the task again where it asks for it; whether it has ended well."""
        code = self.runs[-1].process.poll()
        if code is None:
            return False
        text = self.runs[-1].text()
        assert code == 0 or code >= 128 or code < 0, f"ended with {code}, for good\n{text}"
        if code != 0:
            self.start()
        return code == 0

    def text(self) -> str:
        return "\n--\n".join(run.text() for run in self.runs)


def run(programs: Programs, machines: Machines, folder: Path, seconds: float) -> tuple[str, int]:
    """Runs the job, cutting the link for so many seconds; returns its end and starts."""
    pause = 0.05 if seconds else 0.0  # The cut comes in the midst, however fast the machine.
    sides = [Side(programs, machines, index, folder, pause) for index in range(2)]
    if seconds:
        sides[0].runs[0].until("STEP 41 ")
        machines.cut()
        assert not machines.reachable(), "the link was not cut"
        cut = time.monotonic()
        time.sleep(seconds)
        machines.restore()
        assert machines.reachable(), "the link was not restored"
        goal = sides[0].runs[0]
        wait(
            lambda: goal.process.poll() is not None or goal.find("STEP 61 "),
            END_SECONDS,
            f"an end or more steps\n{sides[0].text()}",
        )
        print(f"cut for {seconds:.0f} s: ended or went on after {time.monotonic() - cut:.1f} s")
    try:
        wait(lambda: all([side.go_on() for side in sides]), 240)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{sides[0].text()}\n==\n{sides[1].text()}") from None
    ends = [side.runs[-1].find(r"END \d+")[0].partition(" at=")[0] for side in sides]
    assert ends[0] == ends[1]
    return ends[0], max(len(side.runs) for side in sides)


@pytest.mark.long
@pytest.mark.parametrize("seconds", [15.0, 30.0, 3.0])
def test_a_cut_link_loses_nothing(
    programs: Programs, machines: Machines, tmp_path: Path, seconds: float
) -> None:
    undisturbed, starts = run(programs, machines, tmp_path / "undisturbed", 0.0)
    assert starts == 1
    disturbed, starts = run(programs, machines, tmp_path / "disturbed", seconds)
    print(f"{starts} starts; {disturbed}")
    assert disturbed == undisturbed
