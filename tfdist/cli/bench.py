"""`tfdist bench`: measures a user's own machines, data and network, each by a benchmark."""

from __future__ import annotations

from tfdist.benchmark import batch, scaling
from tfdist.benchmark import input as pipeline
from tfdist.benchmark.benchmark import run_one_of
from tfdist.benchmark.collectives import measure as collectives
from tfdist.errors import ConfigError

BENCHMARKS = {
    each.name: each
    for each in (scaling.BENCHMARK, batch.BENCHMARK, pipeline.BENCHMARK, collectives.BENCHMARK)
}
_EXAMPLES = ("tfdist bench batch --model small_cnn", "tfdist bench scaling --counts 1 2")
# Those of the repository's folder `benchmarks`.
_NOT_INSTALLED = ("peers", "equality", "growth", "accuracy", "loss", "prediction")


def main(argv: list[str]) -> int:
    """Runs a benchmark; returns the exit code.

    Raises:
        ConfigError: The arguments are wrong.
        TfdistError: A run failed.
    """
    if argv and argv[0] in _NOT_INSTALLED:
        raise ConfigError(
            f"bench: {argv[0]} measures tfdist itself and is not installed with it; run "
            f"'python -m benchmarks {argv[0]}' in a checkout of tfdist"
        )
    return run_one_of("tfdist bench", BENCHMARKS, argv, _EXAMPLES)
