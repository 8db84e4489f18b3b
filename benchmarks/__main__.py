"""`python -m benchmarks NAME`: the benchmarks of tfdist itself, as a command."""

from __future__ import annotations

import sys

from benchmarks import accuracy, equality, growth, loss, prediction
from benchmarks.peers import measure as peers
from tfdist.benchmark.benchmark import run_one_of
from tfdist.cli import reporting_errors

BENCHMARKS = {
    each.name: each
    for each in (
        peers.BENCHMARK,
        equality.BENCHMARK,
        growth.BENCHMARK,
        accuracy.BENCHMARK,
        loss.BENCHMARK,
        prediction.BENCHMARK,
    )
}
_EXAMPLES = ("python -m benchmarks peers --pairs 5", "python -m benchmarks loss --times 5")


def main(argv: list[str]) -> int:
    """Runs a benchmark; returns the exit code. Errors are one line, as those of `tfdist` are."""
    return reporting_errors(lambda: run_one_of("python -m benchmarks", BENCHMARKS, argv, _EXAMPLES))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
