"""`tfdist bench peers`: measures tfdist's speed beside that of its peers."""

from __future__ import annotations

import pathlib

from tfdist.cli.arguments import Parser, count
from tfdist.cli.bench.say import say
from tfdist.cli.output import output, picture, write_json


def main(argv: list[str]) -> int:
    """Runs it; returns the exit code.

    Raises:
        ConfigError: The arguments are wrong.
        TfdistError: A run failed.
    """
    from tfdist.benchmark.peers import measure, report
    from tfdist.benchmark.peers.contenders import COMPARISONS

    names = [each.name for each in COMPARISONS]
    parser = Parser(
        "tfdist bench peers",
        "Time tfdist beside its peers, in alternated rounds. Makes their Python environments "
        "where they are not there yet.",
        examples=("tfdist bench peers --only two_workers --pairs 1",),
    )
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, help="comparisons (all)", metavar="NAME"
    )
    parser.add_argument("--pairs", type=count, default=5, help="rounds (5)")
    parser.add_argument(
        "--environments",
        metavar="DIR",
        default="runs/peers",
        help="where the peers' Python environments are kept (runs/peers)",
    )
    parser.add_argument("--json", type=output, metavar="FILE", help="also write the speeds")
    parser.add_argument("--plot", type=picture, metavar="FILE", help="also draw them, as a PNG")
    options = parser.parse_args(argv)
    chosen = [each for each in COMPARISONS if each.name in options.only]
    measured = {}
    for comparison in chosen:
        folder = pathlib.Path(options.environments)
        measured[comparison.name] = measure.measure(comparison, options.pairs, folder, say=say)
        say(f"\n{report.table(comparison, measured[comparison.name])}\n")
        if options.json:
            write_json(options.json, measured)
    if options.plot:
        report.plot(measured, chosen, options.plot)
    return 0
