"""Starts the workers of this machine, and passes on what they measure while they do."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

from tfdist.benchmark.collectives.cells import Cell, Row
from tfdist.benchmark.peers.contenders import Contender
from tfdist.benchmark.peers.hosts import LOOPBACK
from tfdist.benchmark.peers.measure import OUTPUT, started
from tfdist.errors import EXIT_CONFIG, EXIT_PEER_LOST, ConfigError, PeerError, TfdistError

ROWS = "rows"
_PAUSE = 0.05
# Seconds that the others have to end after the first one has.
_AFTERWARDS = 5.0
_MARK = "tfdist: "


def measure(
    workers: int,
    cells: Sequence[Cell],
    sizes: Sequence[int],
    seconds: float,
    take: Callable[[Row], None],
) -> None:
    """Measures between processes of this machine, each on its own core if there are enough.

    Args:
        workers: How many, two or more.
        cells: What is measured.
        sizes: Bytes of the arrays.
        seconds: How long the calls of a row are repeated, about.
        take: Receives each row as soon as it is there.

    Raises:
        ConfigError: The workers were told something wrong by the environment.
        PeerError: A worker died; the message names it.
        TfdistError: A worker failed, or measured a wrong result.
    """
    contender = Contender("collectives", "collectives", {"worker": workers})
    chosen = [astuple(cell) for cell in cells]
    work = {
        "program": "collectives",
        "options": {"cells": chosen, "sizes": list(sizes), "seconds": seconds},
    }
    with started(contender, work, None, [LOOPBACK]) as (processes, folder):
        told = (folder / OUTPUT).with_suffix(f".{ROWS}")
        read = 0
        while True:
            running = all(process.poll() is None for process in processes.values())
            lines = told.read_text().splitlines(keepends=True) if told.exists() else []
            for line in lines[read:]:
                if not line.endswith("\n"):
                    break  # Half written.
                take(Row.from_dict(json.loads(line)))
                read += 1
            if (folder / OUTPUT).exists():
                return
            if not running:
                raise _failure(processes, folder)
            time.sleep(_PAUSE)


def _failure(processes: Mapping[str, subprocess.Popen[bytes]], folder: Path) -> TfdistError:
    """Returns the error that names the worker which ended first, and says how."""
    until = time.monotonic() + _AFTERWARDS
    while time.monotonic() < until and any(p.poll() is None for p in processes.values()):
        time.sleep(_PAUSE)
    ended = {task: process.poll() for task, process in processes.items()}
    failed = {task: code for task, code in ended.items() if code}
    # Those that ended with 138 have lost another one, unless all of them did.
    task = min(failed or ended, key=lambda each: failed.get(each) == EXIT_PEER_LOST)
    code = ended[task]
    lines = (folder / f"{task}.log").read_text(errors="replace").strip().splitlines()
    last = lines[-1].removeprefix(_MARK) if lines else "it said nothing"
    name = task.replace("-", "/")
    if code == EXIT_CONFIG:
        return ConfigError(last)
    if code is not None and code < 0:
        return PeerError(
            f"bench collectives: lost {name}: ended by {signal.Signals(-code).name}; start it again"
        )
    if code == EXIT_PEER_LOST:
        return PeerError(f"bench collectives: {last}")
    return TfdistError(f"bench collectives: {name} ended with code {code}: {last}")
