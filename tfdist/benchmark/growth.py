"""Measures what a step costs as the model, the workers, the data or the run grow."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.benchmark.peers.contenders import Contender
from tfdist.benchmark.peers.hosts import LOOPBACK
from tfdist.benchmark.peers.measure import run
from tfdist.runtime.resources import resident_bytes

_BATCH = 32
_FEATURES = 16


@dataclasses.dataclass(frozen=True)
class Size:
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
SWEEPS: dict[str, tuple[Size, ...]] = {
    "weights": tuple(Size(weights=n * _M) for n in (1, 2, 4, 8)),
    "workers": tuple(Size(workers=n, steps=50) for n in (2, 4, 8)),
    "examples": tuple(Size(weights=64**2, examples=n) for n in (_K, 10 * _K, 100 * _K, _M)),
    "steps": tuple(Size(weights=64**2, steps=n) for n in (_K, 10 * _K, 100 * _K)),
}


def measure(
    name: str, *, transport: str = "auto", say: Callable[[str], None] = print
) -> list[tuple[Size, Cost]]:
    """Trains each size of a sweep, together and alone.

    Args:
        name: Which of `SWEEPS`.
        transport: For the Trainer.
        say: Receives a line a run.

    Raises:
        TfdistError: A run failed or took too long.
    """
    found: list[tuple[Size, Cost]] = []
    try:
        for size in SWEEPS[name]:
            together = _run(size, transport, together=True)
            alone = _run(size, transport, together=False)
            cost = Cost(
                together["step"], alone["step"], int(together["memory"]), int(together["grown"])
            )
            found.append((size, cost))
            say(f"{name} {getattr(size, name):,}: {1e3 * cost.step:.3g} ms a step")
    except KeyboardInterrupt:
        say("interrupted; what was measured so far:")
    return found


def _run(size: Size, transport: str, *, together: bool) -> dict[str, float]:
    contender = Contender(f"{size}", "growth", {"worker": size.workers})
    work = {
        "program": "growth",
        "warm_up": min(size.steps, 200),
        "steps": size.steps,
        "options": {
            "weights": size.weights,
            "examples": size.examples,
            "alone": not together,
            "trainer": {"transport": transport} if together else {},
        },
    }
    result: dict[str, float] = run(contender, work, None, 1800.0, [LOOPBACK])["growth"]
    return result


def table(name: str, costs: Sequence[tuple[Size, Cost]]) -> str:
    """Returns a sweep as text."""
    lines = [
        f"{name:>12}{'ms a step':>12}{'alone':>10}{'overhead':>10}{'MB':>8}{'grown by':>10}",
    ]
    for size, cost in costs:
        lines.append(
            f"{getattr(size, name):>12,}{1e3 * cost.step:>12.3f}{1e3 * cost.alone:>10.3f}"
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

    def go(count: int) -> int:
        """Trains about so many steps; returns how many."""
        each = min(count, a_pass)
        passes = max(1, round(count / each))
        fit(x, x[:, :1], batch_size=batch, epochs=passes, steps_per_epoch=each, verbose=0)
        return passes * each

    go(warm_up)
    before, began = resident_bytes(), time.perf_counter()
    made = go(steps)
    seconds = (time.perf_counter() - began) / made
    return {"step": seconds, "memory": before, "grown": resident_bytes() - before}
