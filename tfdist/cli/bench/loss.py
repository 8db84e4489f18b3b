"""`tfdist bench loss`: measures how soon a lost peer is named."""

from __future__ import annotations

from tfdist.cli.arguments import Parser, count
from tfdist.cli.bench.say import say


def main(argv: list[str]) -> int:
    """Runs it; returns the exit code.

    Raises:
        ConfigError: The arguments are wrong.
        TfdistError: A run failed.
    """
    from tfdist.benchmark import loss
    from tfdist.collectives.transport_names import AUTO, TRANSPORTS

    parser = Parser(
        "tfdist bench loss",
        "Kill one of two workers in the midst of training, without a launcher; say how soon the "
        "other one has ended, and whether it has named its peer.",
        examples=("tfdist bench loss --times 5",),
    )
    parser.add_argument("--times", type=count, default=20, help="kills (20)")
    parser.add_argument("--transport", choices=TRANSPORTS, default=AUTO, help="transport (auto)")
    options = parser.parse_args(argv)
    losses = loss.measure(options.times, options.transport, say=say)
    print(loss.summary(losses))
    return 0
