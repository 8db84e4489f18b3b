"""`tfdist bench growth`: measures a step as the model, the workers, the data and the run grow."""

from __future__ import annotations

from tfdist.cli.arguments import Parser
from tfdist.cli.bench.say import say
from tfdist.errors import EXIT_DONE, EXIT_INTERRUPTED


def main(argv: list[str]) -> int:
    """Runs it; returns the exit code.

    Raises:
        ConfigError: The arguments are wrong.
        TfdistError: A run failed.
    """
    from tfdist.benchmark import growth
    from tfdist.collectives.transport_names import AUTO, TRANSPORTS

    parser = Parser(
        "tfdist bench growth",
        "Time a step of several workers, and of as many processes without communication, as the "
        "weights, the workers, the examples or the steps grow; list the memory too.",
        examples=("tfdist bench growth --only workers",),
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(growth.SWEEPS),
        default=list(growth.SWEEPS),
        help="what grows (all of them)",
        metavar="NAME",
    )
    parser.add_argument("--transport", choices=TRANSPORTS, default=AUTO, help="transport (auto)")
    options = parser.parse_args(argv)
    for name in options.only:
        costs = growth.measure(name, transport=options.transport, say=say)
        say(f"\n{growth.table(name, costs)}\n")
        if len(costs) < len(growth.SWEEPS[name]):
            return EXIT_INTERRUPTED
    return EXIT_DONE
