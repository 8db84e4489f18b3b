"""`tfdist bench collectives`: its flags, and the workers that it starts or is one of."""

from __future__ import annotations

import argparse
import json
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from pathlib import Path

from tfdist.benchmark import hardware
from tfdist.benchmark.benchmark import Benchmark, Figures, say
from tfdist.benchmark.collectives import cells, figures
from tfdist.benchmark.collectives.cells import Cell, Row
from tfdist.benchmark.processes import Group, calling, started
from tfdist.cli.arguments import Parser, count
from tfdist.cli.arguments import seconds as seconds_type
from tfdist.cluster import Cluster
from tfdist.collectives.transport_names import WIRE_BYTES
from tfdist.errors import EXIT_CONFIG, EXIT_PEER_LOST, ConfigError, PeerError, TfdistError
from tfdist.scaling.quantities import duration
from tfdist.validation import quote

_PAUSE = 0.05
# Seconds that the others have to end after the first one has.
_AFTERWARDS = 5.0
_MARK = "tfdist: "
_LEAST_BYTES, _MOST_BYTES = 4, 1 << 36
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def measure_locally(
    workers: int,
    chosen: Sequence[Cell],
    sizes: Sequence[int],
    seconds: float,
    take: Callable[[Row], None],
) -> None:
    """Measures between processes of this machine, each on its own core if there are enough.

    Args:
        workers: How many, two or more.
        chosen: What is measured.
        sizes: Bytes of the arrays.
        seconds: How long the calls of a row are repeated, about.
        take: Receives each row as soon as it has been measured.

    Raises:
        ConfigError: A variable of the environment is wrong.
        PeerError: A worker died; the message names it.
        TfdistError: A worker failed, or measured a wrong result.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows"
        arguments = {"cells": [astuple(cell) for cell in chosen], "sizes": list(sizes)}
        arguments |= {"seconds": seconds, "file": str(file)}
        program, work = calling("tfdist.benchmark.collectives.measure:measure_as_worker", arguments)
        with started(program, work, {"worker": workers}) as group:
            read = 0
            while True:
                running = all(process.poll() is None for process in group.processes.values())
                lines = file.read_text().splitlines(keepends=True) if file.exists() else []
                for line in lines[read:]:
                    if not line.endswith("\n"):
                        break  # Half written.
                    take(Row.from_dict(json.loads(line)))
                    read += 1
                if group.output.exists():
                    return
                if not running:
                    raise _failure(group)
                time.sleep(_PAUSE)


def measure_as_worker(cells: list[list[str]], sizes: list[int], seconds: float, file: str) -> None:
    """Measures as one of the processes; the chief adds each row to the file, as a line of JSON."""
    from tfdist.benchmark.collectives import task

    is_chief = Cluster.from_environment().is_chief

    def take(row: Row) -> None:
        if is_chief:
            with Path(file).open("a") as rows:
                rows.write(json.dumps(row.to_dict()) + "\n")

    task.measure([Cell(*cell) for cell in cells], sizes, seconds, take)


def _failure(group: Group) -> TfdistError:
    """Returns the error that names the worker which ended first, and says how."""
    processes = group.processes
    until = time.monotonic() + _AFTERWARDS
    while time.monotonic() < until and any(p.poll() is None for p in processes.values()):
        time.sleep(_PAUSE)
    ended = {task: process.poll() for task, process in processes.items()}
    failed = {task: code for task, code in ended.items() if code}
    # Those that ended with 138 have lost another one, unless all of them did.
    task = min(failed or ended, key=lambda each: failed.get(each) == EXIT_PEER_LOST)
    code = ended[task]
    lines = group.log(task).strip().splitlines()
    last = lines[-1].removeprefix(_MARK) if lines else "it printed nothing"
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


def _add_flags(parser: Parser) -> None:
    parser.add_argument("--workers", type=count, help="processes of this machine (2)")
    for name, known in (
        ("operations", cells.OPERATIONS),
        ("transports", tuple(cells.CARRIERS)),
        ("wire-types", tuple(WIRE_BYTES)),
    ):
        parser.add_argument(
            f"--{name}",
            nargs="+",
            choices=known,
            default=known,
            metavar="NAME",
            help=f"of {', '.join(known)} (all)",
        )
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=_size,
        default=cells.SIZES,
        metavar="SIZE",
        help="bytes of the arrays, such as 64K or 16M (1K to 256M, by factors of 4)",
    )
    parser.add_argument(
        "--seconds",
        type=seconds_type,
        default=0.3,
        help="how long a figure is measured, about (0.3)",
    )


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})([KMG]?)B?", text.upper(), re.ASCII)
    size = int(found[1]) * _UNITS[found[2]] if found else 0
    if not _LEAST_BYTES <= size <= _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{quote(text)} is not a size like 64K, 4 bytes to 64G")
    return size


def _check(parser: Parser, options: argparse.Namespace) -> None:
    _chosen(options)
    cluster = Cluster.from_environment()
    if len(cluster.addresses) > 1 and options.workers is not None:
        raise ConfigError(
            f"bench collectives(--workers): {options.workers} is given in a cluster (from "
            f"{cluster.source}) of {len(cluster.addresses)} tasks; leave it out"
        )
    if options.workers is not None and options.workers < 2:
        raise ConfigError(
            f"bench collectives(--workers): {options.workers} is given; allowed: 2 or more, as "
            "one worker has nobody to send to"
        )


def _chosen(options: argparse.Namespace) -> list[Cell]:
    return cells.cells(options.operations, options.transports, options.wire_types)


def _measure(options: argparse.Namespace) -> Iterator[Figures]:
    """Measures; yields what was measured also where it was interrupted or a worker was lost."""
    chosen, cluster = _chosen(options), Cluster.from_environment()
    in_cluster = len(cluster.addresses) > 1
    workers = 2 if options.workers is None else options.workers
    prints = not in_cluster or cluster.is_chief
    total = len(options.sizes) * (1 + len(chosen))
    rows: list[Row] = []

    def take(row: Row) -> None:
        rows.append(row)
        if prints:
            say(
                f"{len(rows)}/{total}  {figures.size_text(row.size)}  {row.cell}: "
                f"{duration(row.seconds)}, {row.bus_bandwidth / 1e9:.3g} GB/s"
            )

    def found() -> Figures:
        title = f"{where}, {described['processor']}, {described['date']}"
        return Figures(
            f"\n{figures.table(rows)}",
            figures.to_dict(rows, described),
            lambda path: figures.plot(rows, title, path),
        )

    described = hardware.describe()
    where = f"{workers} processes of this machine"
    if in_cluster:
        where = f"{len(cluster.addresses)} tasks, from {cluster.source}"
    if prints:
        say(f"{where}; {hardware.line(described)}")
    try:
        if in_cluster:
            from tfdist.runtime.startup import start_tensorflow

            start_tensorflow()
            from tfdist.benchmark.collectives import task

            task.measure(chosen, options.sizes, options.seconds, take)
        else:
            measure_locally(workers, chosen, options.sizes, options.seconds, take)
    except (KeyboardInterrupt, TfdistError):
        if prints and rows:
            yield found()
        raise
    if prints:
        yield found()


BENCHMARK = Benchmark(
    name="collectives",
    summary="latency and bandwidth by operation, size, transport and wire type",
    description="Time collectives by operation, size, transport and wire type, check their "
    "results, and fit a latency and a bandwidth for 'tfdist plan --network'. Between processes of "
    "this machine, or as a task of the cluster that the environment describes.",
    examples=(
        "tfdist bench collectives --workers 4 --sizes 64K 16M",
        "tfdist launch --workers 4 tfdist bench collectives --json network.json",
    ),
    add_flags=_add_flags,
    check=_check,
    measure=_measure,
    writes=("json", "plot"),
)
