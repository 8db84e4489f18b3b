"""`tfdist bench collectives`: times collectives between processes or tasks of a cluster."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence

from tfdist.benchmark import hardware
from tfdist.benchmark.collectives import cells, local, report
from tfdist.benchmark.collectives.cells import Cell, Row
from tfdist.cli.arguments import Parser, count, seconds
from tfdist.cli.output import output, picture, write_json
from tfdist.cluster import Cluster
from tfdist.collectives.transport_names import WIRE_BYTES
from tfdist.errors import EXIT_DONE, ConfigError, TfdistError
from tfdist.scaling.quantities import duration
from tfdist.validation import quote

_LEAST_BYTES, _MOST_BYTES = 4, 1 << 36
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def main(argv: list[str]) -> int:
    """Measures, and prints what was measured also where it was interrupted or a worker was lost.

    Raises:
        ConfigError: The arguments or the cluster are wrong.
        PeerError: A worker was lost.
        TfdistError: A worker failed, or a result was wrong.
        KeyboardInterrupt: It was interrupted.
    """
    options = _parser().parse_args(argv)
    chosen = cells.cells(options.operations, options.transports, options.wire_types)
    cluster = Cluster.from_environment()
    in_cluster = len(cluster.addresses) > 1
    if in_cluster and options.workers is not None:
        raise ConfigError(
            f"bench collectives(--workers): {options.workers} is given in a cluster (from "
            f"{cluster.source}) of {len(cluster.addresses)} tasks; leave it out"
        )
    workers = 2 if options.workers is None else options.workers
    if workers < 2:
        raise ConfigError(
            f"bench collectives(--workers): {workers} is given; allowed: 2 or more, as one worker "
            "has nobody to send to"
        )
    speaks = not in_cluster or cluster.is_chief
    total = len(options.sizes) * (1 + len(chosen))
    rows: list[Row] = []

    def take(row: Row) -> None:
        rows.append(row)
        if speaks:
            print(
                f"{len(rows)}/{total}  {report.size_text(row.size)}  {row.cell}: "
                f"{duration(row.seconds)}, {row.bus_bandwidth / 1e9:.3g} GB/s",
                flush=True,
            )

    described = hardware.describe()
    where = f"{workers} processes of this machine"
    if in_cluster:
        where = f"{len(cluster.addresses)} tasks, from {cluster.source}"
    if speaks:
        print(f"{where}; {hardware.line(described)}", flush=True)
    try:
        if in_cluster:
            _as_a_task(chosen, options, take)
        else:
            local.measure(workers, chosen, options.sizes, options.seconds, take)
    except (KeyboardInterrupt, TfdistError):
        if speaks and rows:
            _write(rows, described, where, options)
        raise
    if speaks:
        _write(rows, described, where, options)
    return EXIT_DONE


def _as_a_task(
    chosen: Sequence[Cell], options: argparse.Namespace, take: Callable[[Row], None]
) -> None:
    from tfdist.runtime.startup import start_tensorflow

    start_tensorflow()
    from tfdist.benchmark.collectives import task

    task.measure(chosen, options.sizes, options.seconds, take)


def _write(
    rows: Sequence[Row], described: dict[str, str], where: str, options: argparse.Namespace
) -> None:
    print(f"\n{report.table(rows)}", flush=True)
    if options.json:
        write_json(options.json, report.to_dict(rows, described))
    if options.plot:
        title = f"{where}, {described['processor']}, {described['date']}"
        report.plot(rows, title, options.plot)


def _parser() -> Parser:
    parser = Parser(
        "tfdist bench collectives",
        "Time collectives by operation, size, transport and wire type, check their results, and "
        "fit a latency and a bandwidth for 'tfdist plan --network'. Between processes of this "
        "machine, or as a task of the cluster that the environment describes.",
        examples=(
            "tfdist bench collectives --workers 4 --sizes 64K 16M",
            "tfdist launch --workers 4 tfdist bench collectives --json network.json",
        ),
    )
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
        "--seconds", type=seconds, default=0.3, help="how long a figure is measured, about (0.3)"
    )
    parser.add_argument("--json", type=output, metavar="FILE", help="also write all figures")
    parser.add_argument("--plot", type=picture, metavar="FILE", help="also draw them, as a PNG")
    return parser


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})([KMG]?)B?", text.upper(), re.ASCII)
    size = int(found[1]) * _UNITS[found[2]] if found else 0
    if not _LEAST_BYTES <= size <= _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{quote(text)} is not a size like 64K, 4 bytes to 64G")
    return size
