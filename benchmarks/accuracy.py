"""`python -m benchmarks accuracy`: what it costs in accuracy to send less.

Two workers train on the bundled digits.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfdist.benchmark.benchmark import Benchmark, Figures
from tfdist.benchmark.processes import calling, started
from tfdist.cli.arguments import Parser, count

# The arguments of the Trainer; the first is the exact one.
OPTIONS: dict[str, dict[str, Any]] = {
    "float32 every step": {},
    "bfloat16 wire": {"wire_dtype": "bfloat16"},
    "float16 wire": {"wire_dtype": "float16"},
    "8 local steps": {"local_steps": 8},
    "8 local steps, DiLoCo": {
        "local_steps": 8,
        "outer_learning_rate": 0.7,
        "outer_momentum": 0.9,
    },
}


def measure(seeds: int, epochs: int, patience: float = 3600.0) -> dict[str, list[float]]:
    """Trains the small convolutional network with each option from each seed.

    Args:
        seeds: How many seeds.
        epochs: Passes over the 1,500 digits.
        patience: Seconds after which the workers are ended.

    Returns:
        The accuracy on the digits held out, of each seed, by option.

    Raises:
        TfdistError: A worker failed or took too long.
    """
    work = calling("benchmarks.accuracy:train", {"seeds": seeds, "epochs": epochs})
    with started(*work, {"worker": 2}) as group:
        found: dict[str, list[float]] = group.result("accuracy", patience)
    return found


def train(seeds: int, epochs: int) -> dict[str, list[float]]:
    """Trains as one of the workers; see `measure`."""
    import keras

    import tfdist

    strategy = tfdist.build_strategy("auto", tfdist.Cluster.from_environment())
    source = tfdist.data.load("digits")
    batch = 32 * strategy.num_replicas_in_sync
    found: dict[str, list[float]] = {name: [] for name in OPTIONS}
    for seed in range(seeds):
        for name, options in OPTIONS.items():
            keras.utils.set_random_seed(seed)
            with strategy.scope():
                shape = source.image_shape
                model = tfdist.models.small_cnn(shape, 10, batch_norm="plain")
                model.compile(
                    keras.optimizers.Adam(0.01),
                    keras.losses.SparseCategoricalCrossentropy(),
                    metrics=["accuracy"],
                )
            trainer = tfdist.Trainer(model, **options)
            trainer.fit(source.train(batch), epochs=epochs, verbose=0)
            result = trainer.evaluate(source.test(batch), return_dict=True, verbose=0)
            found[name].append(float(result["accuracy"]))
            print(f"seed {seed}, {name}: {found[name][-1]:.4f}")
    return found


def table(accuracies: Mapping[str, Sequence[float]]) -> str:
    """Lists each option's mean, its range, and whether its mean is within the exact one's range.

    Args:
        accuracies: As `measure` returns them.
    """
    exact, *_ = accuracies.values()
    width = max(len(name) for name in accuracies)
    lines = [f"{'':<{width}}  {'mean':>8}  {'lowest':>8}  {'highest':>8}  within the seeds' spread"]
    for name, values in accuracies.items():
        mean = statistics.mean(values)
        within = "yes" if min(exact) <= mean <= max(exact) else "no"
        if mean > max(exact):
            within = "above"
        numbers = "  ".join(f"{value:>8.4f}" for value in (mean, min(values), max(values)))
        lines.append(f"{name:<{width}}  {numbers}  {within}")
    return "\n".join(lines)


def check(parser: Parser, options: argparse.Namespace) -> None:
    """Checks the flags.

    Raises:
        ConfigError: There is one seed only, which has no spread.
    """
    if options.seeds < 2 or options.epochs < 1:
        parser.error(
            f"{options.seeds} seeds and {options.epochs} epochs are given; allowed: 2 seeds or "
            "more, whose spread is the measure, and 1 epoch or more"
        )


def _add_flags(parser: Parser) -> None:
    parser.add_argument("--seeds", type=count, default=5, help="seeds (5)")
    parser.add_argument("--epochs", type=count, default=15, help="passes over the digits (15)")


def _measure(options: argparse.Namespace) -> Iterator[Figures]:
    found = measure(options.seeds, options.epochs)
    title = f"accuracy on the digits held out, {options.seeds} seeds, {options.epochs} epochs"
    yield Figures(f"{title}\n{table(found)}", found)


BENCHMARK = Benchmark(
    name="accuracy",
    summary="what it costs in accuracy to send less",
    description="Train two workers on the bundled digits, exactly and in each of the ways to send "
    "less, from several seeds; list the accuracy on the digits held out.",
    examples=("python -m benchmarks accuracy --seeds 2 --epochs 5",),
    add_flags=_add_flags,
    check=check,
    measure=_measure,
    writes=("json",),
)
