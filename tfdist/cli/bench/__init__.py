"""`tfdist bench`: measures what tfdist claims, each in a command of its own."""

from __future__ import annotations

import importlib

from tfdist.cli.arguments import listing
from tfdist.errors import EXIT_DONE, ConfigError
from tfdist.validation import did_you_mean, quote

# name -> what it measures; each is a module of this package with `main(argv) -> int`.
BENCHMARKS = {
    "equality": "losses on one device, two replicas and two workers",
    "peers": "speed beside TensorFlow's, Keras', PyTorch's and Horovod's own loops",
    "scaling": "samples a second and efficiency with more workers or replicas",
    "batch": "samples a second by batch size, and which one to take",
    "input": "what the data pipeline delivers, stage by stage, and what steps take",
    "collectives": "latency and bandwidth by operation, size, transport and wire type",
    "prediction": "steps as 'tfdist plan' predicts them, and measured",
    "growth": "a step as the model, the workers, the data and the run grow",
    "accuracy": "what ways to send less cost in accuracy",
    "loss": "how soon a lost peer is named",
}
_EXAMPLES = ("tfdist bench batch --model small_cnn", "tfdist bench scaling --counts 1 2")


def main(argv: list[str]) -> int:
    """Runs a benchmark; returns the exit code.

    Raises:
        ConfigError: The arguments are wrong.
        TfdistError: A run failed.
    """
    if argv and argv[0] in ("-h", "--help"):
        print(listing("tfdist bench", "NAME", "[ARGUMENTS]", BENCHMARKS, _EXAMPLES))
        return EXIT_DONE
    if not argv or argv[0] not in BENCHMARKS:
        given = f"{quote(argv[0])} is not a benchmark" if argv else "no benchmark is given"
        hint = did_you_mean(argv[0], BENCHMARKS) if argv else ""
        raise ConfigError(f"bench: {given}; benchmarks are {', '.join(BENCHMARKS)}{hint}")
    code: int = importlib.import_module(f"tfdist.cli.bench.{argv[0]}").main(argv[1:])
    return code
