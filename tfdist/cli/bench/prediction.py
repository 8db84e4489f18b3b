"""`tfdist bench prediction`: compares the steps that `tfdist plan` predicts with measured ones."""

from __future__ import annotations

from tfdist.cli.arguments import Parser, count
from tfdist.cli.bench.say import say
from tfdist.errors import EXIT_DONE, EXIT_INTERRUPTED


def main(argv: list[str]) -> int:
    """Runs it; returns the exit code.

    Raises:
        ConfigError: The arguments are wrong.
        TfdistError: A run failed.
    """
    from tfdist.benchmark import hardware, prediction

    parser = Parser(
        "tfdist bench prediction",
        "Compare the steps that 'tfdist plan' predicts for workers of this machine with measured "
        "ones; latency, bandwidth and the time of computation are measured in the same run.",
        examples=("tfdist bench prediction --workers 1 2 --model small",),
    )
    parser.add_argument(
        "--workers",
        nargs="+",
        type=count,
        default=[1, 2, 4],
        metavar="N",
        help="the numbers of workers (1 2 4)",
    )
    parser.add_argument(
        "--model", choices=("resnet50", "small"), default="resnet50", help="model (resnet50)"
    )
    parser.add_argument("--rounds", type=count, default=1, help="rounds, alternated (1)")
    options = parser.parse_args(argv)
    prediction.checked(options.workers, options.rounds)
    say(hardware.line(hardware.describe()))
    found = prediction.measure(options.workers, options.model, options.rounds, say=say)
    say(f"\n{prediction.table(found)}")
    return EXIT_DONE if len(found) == len(options.workers) else EXIT_INTERRUPTED
