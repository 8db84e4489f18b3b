"""`tfdist bench peers`: measures tfdist's speed beside that of its peers."""

from __future__ import annotations

import pathlib

from tfdist.cli.arguments import Parser, count
from tfdist.cli.bench.say import say
from tfdist.cli.output import output, picture, write_json
from tfdist.errors import EXIT_DONE, EXIT_INTERRUPTED


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
        examples=(
            "tfdist bench peers --pairs 5",
            "tfdist bench peers --only all --pairs 5 --plot peers.png",
        ),
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=["all", *names],
        default=["two_workers"],
        help=f"all, or of {', '.join(names)} (two_workers)",
        metavar="NAME",
    )
    parser.add_argument("--pairs", type=count, default=1, help="rounds, of minutes each (1)")
    parser.add_argument(
        "--environments",
        metavar="DIR",
        default="runs/peers",
        help="where the peers' Python environments are kept (runs/peers)",
    )
    parser.add_argument("--json", type=output, metavar="FILE", help="also write the speeds")
    parser.add_argument("--plot", type=picture, metavar="FILE", help="also draw them, as a PNG")
    options = parser.parse_args(argv)
    chosen = [each for each in COMPARISONS if {each.name, "all"} & {*options.only}]
    measured = {}
    is_whole = True
    for comparison in chosen:
        folder = pathlib.Path(options.environments)
        speeds = measure.measure(comparison, options.pairs, folder, say=say)
        measured[comparison.name] = speeds
        say(f"\n{report.table(comparison, speeds)}\n")
        if options.json:
            write_json(options.json, measured)
        is_whole = sum(map(len, speeds.values())) == options.pairs * len(comparison.contenders)
        if not is_whole:
            break
    if options.plot:
        report.plot(measured, [each for each in chosen if each.name in measured], options.plot)
    return EXIT_DONE if is_whole else EXIT_INTERRUPTED
