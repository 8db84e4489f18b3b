"""Runs contenders alternately, one after another in each round, each process on its own core."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from tfdist.benchmark.peers.contenders import Comparison, Contender
from tfdist.benchmark.peers.environments import python_of
from tfdist.benchmark.peers.hosts import LOOPBACK, Host, has_delays, two_hosts
from tfdist.errors import TfdistError
from tfdist.launcher.machine import usable_cores
from tfdist.launcher.ports import free_ports
from tfdist.runtime.threads import thread_variables

# Roles that do no work of their own share the first core.
_LIGHT = ("chief", "ps")
_HERE = Path(__file__).parent
# What the first task writes its result to.
OUTPUT = "result.json"
# The programs of peers whose environments cannot import tfdist.
_PROGRAMS = {"torch": "torch_ddp.py", "horovod": "horovod_tape.py"}


@dataclasses.dataclass(frozen=True)
class Length:
    """How long a contender runs.

    Attributes:
        warm_up: Steps before the clock starts.
        steps: Steps on the clock.
    """

    warm_up: int
    steps: int


LENGTHS = {
    "resnet50": Length(5, 20),
    "resnet50_synchronized": Length(5, 20),
    "small": Length(200, 2000),
}


def measure(
    comparison: Comparison,
    pairs: int,
    environments: Path,
    *,
    length: Length | None = None,
    patience: float = 900.0,
    say: Callable[[str], None] = print,
) -> dict[str, list[float]]:
    """Runs every contender once in each round.

    Args:
        comparison: What is compared.
        pairs: Rounds.
        environments: Where the peers' Python environments are kept.
        length: How long each runs; by the model if None.
        patience: Seconds after which a run is ended.
        say: Receives a line a run.

    Returns:
        Steps a second of each round, by the contender's name.

    Raises:
        TfdistError: A run failed or took too long.
        KeyboardInterrupt: It was interrupted before anything was measured; later, what there is by
            then is returned.
    """
    length = length or LENGTHS[comparison.model]
    speeds: dict[str, list[float]] = {each.name: [] for each in comparison.contenders}
    pythons = {each.environment: "" for each in comparison.contenders}
    for name in pythons:
        pythons[name] = python_of(name, environments)
    link = comparison.link
    if link is not None and not has_delays():
        say(f"{comparison.name}: this kernel has no sch_netem: {link.rate}, and no delay")
    with contextlib.nullcontext([LOOPBACK]) if link is None else two_hosts(link) as hosts:
        try:
            for number in range(pairs):
                # The other way round every second time: what slows a machine down cancels out.
                for each in comparison.contenders[:: 1 if number % 2 == 0 else -1]:
                    work = {
                        "program": each.program,
                        "model": comparison.model,
                        "optimizer": comparison.optimizer,
                        "warm_up": length.warm_up,
                        "steps": length.steps,
                        "options": dict(each.options),
                    }
                    python = pythons[each.environment]
                    seconds = float(run(each, work, python, patience, hosts)["seconds"])
                    speeds[each.name].append(length.steps / seconds)
                    round_of = f"{comparison.name} {number + 1}/{pairs}"
                    say(f"{round_of}  {each.name}: {length.steps / seconds:.4g} steps/s")
        except KeyboardInterrupt:
            if not any(speeds.values()):
                raise
            say("interrupted; what was measured so far:")
            speeds = {name: values for name, values in speeds.items() if values}
    return speeds


def run(
    contender: Contender,
    work: Mapping[str, object],
    python: str | None,
    patience: float,
    hosts: Sequence[Host],
    *,
    cores: int | None = None,
) -> dict[str, Any]:
    """Runs the tasks of a contender; returns what the first of them wrote.

    Args:
        contender: The contender.
        work: The fields of `work.Work` but for the output.
        python: The interpreter; None for this process' own.
        patience: Seconds after which the run is ended.
        hosts: Where its tasks run, in turn.
        cores: Cores of each task that computes; an equal part of all of them if None.

    Raises:
        TfdistError: The run failed or took too long.
    """
    with started(contender, work, python, hosts, cores=cores) as (processes, folder):
        output = folder / OUTPUT
        _wait(list(processes.values()), output, contender.name, folder, patience)
        result: dict[str, Any] = json.loads(output.read_text())
        return result


@contextlib.contextmanager
def started(
    contender: Contender,
    work: Mapping[str, object],
    python: str | None,
    hosts: Sequence[Host],
    *,
    cores: int | None = None,
) -> Iterator[tuple[dict[str, subprocess.Popen[bytes]], Path]]:
    """Starts the tasks of a contender, and ends those that are left when the block ends.

    Args:
        contender: The contender.
        work: The fields of `work.Work` but for the output, which is `OUTPUT` in the folder.
        python: The interpreter; None for this process' own.
        hosts: Where its tasks run, in turn.
        cores: Cores of each task that computes; an equal part of all of them if None.

    Returns:
        The processes by task (`worker-0`), and a folder with their logs (`worker-0.log`).
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told = json.dumps({**work, "output": str(folder / OUTPUT)})
        command = [python or sys.executable, "-m", "tfdist.benchmark.peers.work", told]
        if contender.environment in _PROGRAMS:
            command[1:3] = [str(_HERE / _PROGRAMS[contender.environment])]
        with ending_together() as processes:
            for task, environment, own, host in _tasks(contender, hosts, cores):
                with (folder / f"{task}.log").open("wb") as log:
                    processes[task] = _start([*host.enter, *command], environment, own, log)
            yield processes, folder


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
    contender: Contender, hosts: Sequence[Host], width: int | None = None
) -> list[tuple[str, dict[str, str], list[int], Host]]:
    """Name, environment, cores and host of each task; hosts are taken in turn."""
    usable = usable_cores()
    count = sum(contender.tasks.values())
    ports = free_ports(count)
    places = [hosts[number % len(hosts)] for number in range(count)]
    at = iter([f"{host.address}:{port}" for host, port in zip(places, ports, strict=True)])
    cluster = {role: [next(at) for _ in range(number)] for role, number in contender.tasks.items()}
    place = iter(places)
    computing = sum(n for role, n in contender.tasks.items() if role not in _LIGHT)
    each = min(width or max(1, len(usable) // computing), len(usable))
    found = []
    rank = 0
    for role, number in contender.tasks.items():
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
                # All contenders get the kernels that TensorFlow leaves off on some processors.
                "TF_ENABLE_ONEDNN_OPTS": "1",
                "PYTHONPATH": str(_HERE.parents[2]),
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


def _wait(
    processes: Sequence[subprocess.Popen[bytes]],
    output: Path,
    name: str,
    folder: Path,
    patience: float,
) -> None:
    deadline = time.monotonic() + patience
    while not output.exists() or not output.read_text():
        ended = [process.poll() for process in processes]
        if any(ended) or time.monotonic() > deadline or all(code is not None for code in ended):
            time.sleep(1)
            if output.exists() and output.read_text():
                return
            logs = sorted(folder.glob("*.log"))
            last = "\n".join(
                f"-- {log.stem}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-8:])
                for log in logs
            )
            raise TfdistError(f"peers: {name!r} did not finish\n{last}")
        time.sleep(0.1)
