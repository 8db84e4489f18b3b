"""`tfdist bench accuracy`: measures what ways to send less cost in accuracy."""

from __future__ import annotations

from tfdist.cli.arguments import Parser, count
from tfdist.cli.output import output, write_json


def main(argv: list[str]) -> int:
    """Runs it; returns the exit code.

    Raises:
        ConfigError: The arguments are wrong.
        TfdistError: A run failed.
    """
    from tfdist.benchmark import accuracy

    parser = Parser(
        "tfdist bench accuracy",
        "Train two workers on the bundled digits, exactly and in each of the ways to send less, "
        "from several seeds; list the accuracy on the digits held out.",
        examples=("tfdist bench accuracy --seeds 2 --epochs 5",),
    )
    parser.add_argument("--seeds", type=count, default=5, help="seeds (5)")
    parser.add_argument("--epochs", type=count, default=15, help="passes over the digits (15)")
    parser.add_argument("--json", type=output, metavar="FILE", help="also write every accuracy")
    options = parser.parse_args(argv)
    accuracy.checked(options.seeds, options.epochs)
    found = accuracy.measure(options.seeds, options.epochs)
    if options.json:
        write_json(options.json, found)
    print(f"accuracy on the digits held out, {options.seeds} seeds, {options.epochs} epochs")
    print(accuracy.table(found))
    return 0
