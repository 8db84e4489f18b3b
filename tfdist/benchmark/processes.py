"""Starts the processes of a benchmark: the tasks of a small cluster, each on its own cores.

As a program, it is such a process: `python -m tfdist.benchmark.processes JSON` calls a function and
writes what that returns.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from tfdist.errors import TfdistError
from tfdist.launcher.machine import usable_cores
from tfdist.launcher.ports import free_ports
from tfdist.runtime.threads import thread_variables

# Roles that do not compute share all cores.
_LIGHT = ("chief", "ps")
# Where the processes find tfdist.
ROOT = Path(__file__).parents[2]
_LAST_LINES = 8


@dataclass(frozen=True)
class NetworkHost:
    """A network address of this machine at which tasks run.

    Attributes:
        address: Where its tasks listen.
        interface: The network interface of that address.
        enter: The command in front of a task's.
    """

    address: str
    interface: str
    enter: tuple[str, ...] = ()


LOOPBACK = NetworkHost("127.0.0.1", "lo")


@dataclass(frozen=True)
class Group:
    """Processes that run, and where they write.

    Attributes:
        folder: The folder of their logs.
        output: Where the first of them writes its result, as JSON.
        processes: The processes, by task (`worker-0`).
    """

    folder: Path
    output: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def log(self, task: str) -> str:
        """Returns what a task has printed."""
        return (self.folder / f"{task}.log").read_text(errors="replace")

    def result(self, name: str, patience: float) -> Any:
        """Waits for the result.

        Args:
            name: What runs, for the error.
            patience: Seconds after which it has taken too long.

        Raises:
            TfdistError: The processes failed or took too long.
        """
        deadline = time.monotonic() + patience
        while not self._has_result():
            codes = [process.poll() for process in self.processes.values()]
            if any(codes) or None not in codes or time.monotonic() > deadline:
                time.sleep(1)
                if self._has_result():
                    break
                raise TfdistError(f"benchmark: {name!r} did not finish\n{self._last_lines()}")
            time.sleep(0.1)
        return json.loads(self.output.read_text())

    def _has_result(self) -> bool:
        return self.output.exists() and bool(self.output.read_text())

    def _last_lines(self) -> str:
        return "\n".join(
            f"-- {task}\n" + "\n".join(self.log(task).splitlines()[-_LAST_LINES:])
            for task in sorted(self.processes)
        )


@contextlib.contextmanager
def started(
    program: Sequence[str],
    work: Mapping[str, object],
    tasks: Mapping[str, int],
    *,
    hosts: Sequence[NetworkHost] = (LOOPBACK,),
    cores: int | None = None,
) -> Iterator[Group]:
    """Starts the tasks of a cluster, and ends those that are left when the block ends.

    Args:
        program: The command of each task. Its last argument is a JSON object: `work`, and as
            `output` the file that the first task writes its result to.
        work: What the program is given.
        tasks: How many tasks of each role.
        hosts: Where the tasks run, in turn.
        cores: Cores of each task that computes; an equal part of all of them if None.
    """
    with tempfile.TemporaryDirectory() as name, ending_together() as processes:
        group = Group(Path(name), Path(name) / "result.json", processes)
        command = [*program, json.dumps({**work, "output": str(group.output)})]
        for task, environment, own, host in _tasks(tasks, hosts, cores):
            with (group.folder / f"{task}.log").open("wb") as log:
                processes[task] = _start([*host.enter, *command], environment, own, log)
        yield group


def calling(function: str, arguments: Mapping[str, object]) -> tuple[list[str], dict[str, object]]:
    """Returns the program and the work of processes that each call a function.

    Args:
        function: `module:function`; what it returns in the first task is the result.
        arguments: Its arguments.
    """
    program = [sys.executable, "-m", "tfdist.benchmark.processes"]
    return program, {"function": function, "arguments": dict(arguments)}


@contextlib.contextmanager
def ending_together() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Ends the processes that are put into it when its block ends, or SIGTERM ends this one."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _tasks(
    tasks: Mapping[str, int], hosts: Sequence[NetworkHost], width: int | None = None
) -> list[tuple[str, dict[str, str], list[int], NetworkHost]]:
    """Returns the name, environment, cores and host of each task; hosts are taken in turn."""
    usable = usable_cores()
    count = sum(tasks.values())
    ports = free_ports(count)
    places = [hosts[number % len(hosts)] for number in range(count)]
    at = iter([f"{host.address}:{port}" for host, port in zip(places, ports, strict=True)])
    cluster = {role: [next(at) for _ in range(number)] for role, number in tasks.items()}
    place = iter(places)
    computing = sum(number for role, number in tasks.items() if role not in _LIGHT)
    each = min(width or max(1, len(usable) // computing), len(usable))
    found = []
    rank = 0
    for role, number in tasks.items():
        for index in range(number):
            host = next(place)
            cores = usable
            if role not in _LIGHT and (computing > 1 or width):
                cores = [usable[(rank * each + i) % len(usable)] for i in range(each)]
            environment = dict(os.environ)
            environment.pop("TF_CONFIG", None)
            environment |= thread_variables(len(cores)) | {
                "CUDA_VISIBLE_DEVICES": "",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                # All get the kernels that TensorFlow leaves off on some processors.
                "TF_ENABLE_ONEDNN_OPTS": "1",
                "PYTHONPATH": str(ROOT),
                # What programs that are not TensorFlow's find each other by.
                "RANK": str(rank),
                "WORLD_SIZE": str(count),
                "MASTER_ADDR": places[0].address,
                "MASTER_PORT": str(ports[0]),
                "INTERFACE": host.interface,
                "GLOO_SOCKET_IFNAME": host.interface,
            }
            if count > 1:
                task = {"type": role, "index": index}
                environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
            found.append((f"{role}-{index}", environment, cores, host))
            rank += role not in _LIGHT
    return found


def _start(
    command: Sequence[str], environment: Mapping[str, str], cores: Sequence[int], log: BinaryIO
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )


def is_first_task() -> bool:
    """Returns whether this process writes the result: the chief, else worker 0, else the only."""
    task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {"type": "chief"})
    return task["type"] == "chief" or (task["type"], task["index"]) == ("worker", 0)


def finish(result: Any, output: str | None) -> NoReturn:
    """Writes the result, and ends this process without waiting for the others.

    Args:
        result: The result.
        output: The file; None where another task writes its own.
    """
    if output is not None:
        Path(output).write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


def _main(text: str) -> NoReturn:
    given = json.loads(text)
    output = given["output"] if is_first_task() else None  # Before a function changes TF_CONFIG.
    module, _, name = given["function"].partition(":")
    finish(getattr(importlib.import_module(module), name)(**given["arguments"]), output)


if __name__ == "__main__":
    _main(sys.argv[1])
