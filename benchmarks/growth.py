"""`python -m benchmarks growth`: a step as the model, the workers, the data or the run grow."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from tfdist.benchmark.benchmark import Benchmark, Figures, until_interrupted
from tfdist.benchmark.processes import calling, started
from tfdist.cli.arguments import Parser
from tfdist.collectives.transport_names import AUTO, TRANSPORTS
from tfdist.runtime.resources import resident_bytes

_BATCH = 32
_FEATURES = 16
_PATIENCE = 1800.0


@dataclasses.dataclass(frozen=True)
class Training:
    """What is trained: a network with one large layer, on arrays.

    Attributes:
        workers: Workers.
        weights: Weights of the large layer.
        examples: Rows of the arrays.
        steps: Steps on the clock.
    """

    workers: int = 2
    weights: int = 1_000_000
    examples: int = 10_000
    steps: int = 200


@dataclasses.dataclass(frozen=True)
class Cost:
    """What it took.

    Attributes:
        step: Seconds a step.
        alone: Seconds a step of as many processes, each of which trains by itself.
        memory: Bytes of the first worker's process after the warm-up.
        grown: How many bytes more it had after the steps on the clock.
    """

    step: float
    alone: float
    memory: int
    grown: int


_K, _M = 1000, 1_000_000
SWEEPS: dict[str, tuple[Training, ...]] = {
    "weights": tuple(Training(weights=n * _M) for n in (1, 2, 4, 8)),
    "workers": tuple(Training(workers=n, steps=50) for n in (2, 4, 8)),
    "examples": tuple(Training(weights=64**2, examples=n) for n in (_K, 10 * _K, 100 * _K, _M)),
    "steps": tuple(Training(weights=64**2, steps=n) for n in (_K, 10 * _K, 100 * _K)),
}


def measure(name: str, *, transport: str = "auto") -> Iterator[tuple[Training, Cost]]:
    """Trains each size of a sweep, together and alone.

    Args:
        name: Which of `SWEEPS`.
        transport: For the Trainer.

    Raises:
        TfdistError: A run failed or took too long.
    """
    for training in SWEEPS[name]:
        together = _run(training, transport, together=True)
        alone = _run(training, transport, together=False)
        yield (
            training,
            Cost(together["step"], alone["step"], int(together["memory"]), int(together["grown"])),
        )


def _run(training: Training, transport: str, *, together: bool) -> dict[str, float]:
    arguments = {
        "warm_up": min(training.steps, 200),
        "steps": training.steps,
        "weights": training.weights,
        "examples": training.examples,
        "alone": not together,
        "trainer": {"transport": transport} if together else {},
    }
    work = calling("benchmarks.growth:train", arguments)
    with started(*work, {"worker": training.workers}) as group:
        result: dict[str, float] = group.result(f"{training}", _PATIENCE)
    return result


def line(name: str, costs: Sequence[tuple[Training, Cost]]) -> str:
    """Returns the latest size of a sweep and what it took, in a few words."""
    training, cost = costs[-1]
    return f"{name} {getattr(training, name):,}: {1e3 * cost.step:.3g} ms a step"


def table(name: str, costs: Sequence[tuple[Training, Cost]]) -> str:
    """Returns a sweep as text."""
    lines = [
        f"{name:>12}{'ms a step':>12}{'alone':>10}{'overhead':>10}{'MB':>8}{'grown by':>10}",
    ]
    for training, cost in costs:
        lines.append(
            f"{getattr(training, name):>12,}{1e3 * cost.step:>12.3f}{1e3 * cost.alone:>10.3f}"
            f"{1e3 * (cost.step - cost.alone):>10.3f}{cost.memory / 1e6:>8.0f}"
            f"{cost.grown / 1e6:>10.1f}"
        )
    return "\n".join(lines)


def train(
    warm_up: int, steps: int, *, weights: int, examples: int, alone: bool, trainer: dict[str, Any]
) -> dict[str, float]:
    """Trains as one of the processes; returns the seconds of a step, and memory."""
    if alone:
        os.environ.pop("TF_CONFIG", None)
    import time

    import keras
    import numpy as np

    import tfdist

    cluster = tfdist.Cluster.from_environment()
    strategy = tfdist.build_strategy("auto", cluster)
    batch = _BATCH * len(cluster.jobs.get("worker", ["alone"]))
    layers, width = keras.layers, round(weights**0.5)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((_FEATURES,)),
                layers.Dense(width, activation="relu"),
                layers.Dense(width, activation="relu", use_bias=False),
                layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mse")
    x = np.random.default_rng(0).normal(size=(examples, _FEATURES)).astype("float32")
    fit = tfdist.Trainer(model, **trainer).fit
    a_pass = -(-examples // batch)

    def fit_about(count: int) -> int:
        """Trains about so many steps; returns how many."""
        each = min(count, a_pass)
        passes = max(1, round(count / each))
        fit(x, x[:, :1], batch_size=batch, epochs=passes, steps_per_epoch=each, verbose=0)
        return passes * each

    fit_about(warm_up)
    before, began = resident_bytes(), time.perf_counter()
    done = fit_about(steps)
    seconds = (time.perf_counter() - began) / done
    return {"step": seconds, "memory": before, "grown": resident_bytes() - before}


def _add_flags(parser: Parser) -> None:
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(SWEEPS),
        default=list(SWEEPS),
        help="what grows (all of them)",
        metavar="NAME",
    )
    parser.add_argument("--transport", choices=TRANSPORTS, default=AUTO, help="transport (auto)")


def _measure(options: argparse.Namespace) -> Iterator[Figures]:
    for name in options.only:
        costs, is_whole = until_interrupted(
            measure(name, transport=options.transport), functools.partial(line, name)
        )
        yield Figures(f"\n{table(name, costs)}\n", is_whole=is_whole)
        if not is_whole:
            return


BENCHMARK = Benchmark(
    name="growth",
    summary="a step as the model, the workers, the data and the run grow",
    description="Time a step of several workers, and of as many processes without communication, "
    "as the weights, the workers, the examples or the steps grow; list the memory too.",
    examples=("python -m benchmarks growth --only workers",),
    add_flags=_add_flags,
    measure=_measure,
)
