"""`python -m benchmarks prediction`: steps as `tfdist plan` predicts them, and measured.

For each number of workers: as many processes train each by itself, which gives the time of a step's
computation on a machine that is as busy; the same number train together over the ring's connections
and then time its all-reduces, which gives α and β. Gradients are sent after the backward pass, on
cores that have no time for both. What is predicted from these is compared with the step measured.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.workload import data, fit_seconds, make_model
from tfdist.benchmark import hardware
from tfdist.benchmark.benchmark import Benchmark, Figures, say, until_interrupted
from tfdist.benchmark.processes import calling, started
from tfdist.cli.arguments import Parser, count
from tfdist.scaling.network import Link, fit_link
from tfdist.scaling.prediction import Model, Step

_SIZES = tuple(4**power << 10 for power in range(4, 9))  # 256 KB to 64 MB
_CALLS = 7
_STEPS = {"resnet50": 15, "small": 500}
_PATIENCE = 900.0


@dataclass(frozen=True)
class Prediction:
    """A predicted step and the measured one.

    Attributes:
        workers: The number of workers.
        alone: Seconds of a step of as many processes without communication.
        link: What the ring's all-reduces were like; None for one worker.
        gradient_bytes: Bytes of all gradients.
        measured: Seconds of a step of the workers together.
    """

    workers: int
    alone: float
    link: Link | None
    gradient_bytes: int
    measured: float

    @property
    def predicted(self) -> Step:
        """The step that the model of `tfdist plan` predicts."""
        link = self.link or Link(0.0, 1.0)
        model = Model(compute_seconds=self.alone, wire_bytes=self.gradient_bytes, link=link)
        return model.step(self.workers)

    @property
    def error(self) -> float:
        """The relative difference of the prediction from what was measured."""
        return self.predicted.seconds / self.measured - 1


def measure(workers: Sequence[int], model: str, rounds: int) -> Iterator[Prediction]:
    """Measures each number of workers, alone and together in turn.

    Args:
        workers: The numbers of workers.
        model: "resnet50" (32 x 32 pixels, 32 images a worker) or "small".
        rounds: How often; medians count.

    Raises:
        TfdistError: A run failed or took too long.
    """
    for number in workers:
        alone, together = [], []
        for _ in range(rounds):
            alone.append(_run(number, model, together=False))
            together.append(_run(number, model, together=True))
        points = [(size, t) for each in together for size, t in each["all_reduces"]]
        yield Prediction(
            number,
            statistics.median(each["step"] for each in alone),
            fit_link(points, number) if number > 1 else None,
            int(together[0]["gradient_bytes"]),
            statistics.median(each["step"] for each in together),
        )


def line(found: Prediction) -> str:
    """Returns what was predicted and measured, in a few words."""
    return (
        f"{found.workers} workers: predicted {1e3 * found.predicted.seconds:.4g} ms, measured "
        f"{1e3 * found.measured:.4g} ms"
    )


def table(predictions: Sequence[Prediction]) -> str:
    """Lists predicted and measured steps, and their relative difference."""
    lines = [
        f"{'workers':>8}{'alone':>10}{'latency':>10}{'bandwidth':>12}{'all-reduce':>12}"
        f"{'predicted':>11}{'measured':>10}{'error':>8}",
        f"{'':>8}{'ms':>10}{'µs':>10}{'GB/s':>12}{'ms':>12}{'ms':>11}{'ms':>10}{'%':>8}",
    ]
    for each in predictions:
        link = each.link
        latency = f"{'':>10}{'':>12}"
        if link is not None:
            latency = f"{1e6 * link.latency:>10.1f}{link.bandwidth / 1e9:>12.2f}"
        step = each.predicted
        lines.append(
            f"{each.workers:>8}{1e3 * each.alone:>10.1f}{latency}"
            f"{1e3 * step.communication:>12.1f}{1e3 * step.seconds:>11.1f}"
            f"{1e3 * each.measured:>10.1f}{100 * each.error:>+8.1f}"
        )
    return "\n".join(lines)


def check(parser: Parser, options: argparse.Namespace) -> None:
    """Checks the flags.

    Raises:
        ConfigError: There is nothing to measure.
    """
    if options.rounds < 1 or not all(options.workers):
        parser.error(
            f"{options.rounds} rounds of {options.workers} workers are given; allowed: 1 or more "
            "of each"
        )


def _run(workers: int, model: str, *, together: bool) -> dict[str, Any]:
    arguments = {"model": model, "steps": _STEPS[model], "alone": not together}
    work = calling("benchmarks.prediction:train", arguments)
    with started(*work, {"worker": workers}) as group:
        result: dict[str, Any] = group.result("prediction", _PATIENCE)
    return result


def train(model: str, steps: int, alone: bool) -> dict[str, Any]:
    """Trains as one of the processes, and times all-reduces if it has peers.

    Args:
        model: "resnet50" or "small".
        steps: Steps before the clock starts, and on the clock.
        alone: Whether each process trains by itself.
    """
    if alone:
        os.environ.pop("TF_CONFIG", None)
    import keras

    import tfdist
    from tfdist.collectives.choose import sending_after_backward
    from tfdist.collectives.process_group import ProcessGroup
    from tfdist.collectives.ring.wiring import ring_of

    strategy = tfdist.build_strategy("auto", tfdist.Cluster.from_environment())
    with strategy.scope():
        trained = make_model(model)
    group = ProcessGroup(strategy)
    workers = group.layout.workers
    with sending_after_backward():  # As the prediction assumes.
        trainer = tfdist.Trainer(trained, transport="ring" if workers > 1 else "auto")
        seconds = fit_seconds(
            trainer.fit,
            keras.callbacks.Callback,
            data(model, workers),
            warm_up=steps,
            steps=steps,
        )
    ring = ring_of(strategy, group)[0] if workers > 1 else None
    return {
        "step": seconds / steps,
        "all_reduces": [] if ring is None else _all_reduces(ring),
        "gradient_bytes": sum(4 * math.prod(w.shape) for w in trained.trainable_weights),
    }


def _all_reduces(ring: Any) -> list[tuple[int, float]]:
    """Returns sizes in bytes and median seconds of sums by a ring."""
    import numpy as np

    found = []
    for size in _SIZES:
        array = np.zeros(size // 4, np.float32)
        times = []
        for _ in range(_CALLS):
            ring.all_gather(np.zeros(1))  # A barrier.
            began = time.perf_counter()
            ring.all_reduce(array)
            times.append(time.perf_counter() - began)
        slowest = np.max(ring.all_gather(np.array(times)), axis=0)
        found.append((size, float(np.median(slowest[1:]))))
    return found


def _add_flags(parser: Parser) -> None:
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


def _measure(options: argparse.Namespace) -> Iterator[Figures]:
    say(hardware.line(hardware.describe()))
    found, is_whole = until_interrupted(
        measure(options.workers, options.model, options.rounds), lambda rows: line(rows[-1])
    )
    yield Figures(f"\n{table(found)}", is_whole=is_whole)


BENCHMARK = Benchmark(
    name="prediction",
    summary="steps as 'tfdist plan' predicts them, and measured",
    description="Compare the steps that 'tfdist plan' predicts for workers of this machine with "
    "measured ones; latency, bandwidth and the time of computation are measured in the same run.",
    examples=("python -m benchmarks prediction --workers 1 2 --model small",),
    add_flags=_add_flags,
    check=check,
    measure=_measure,
)
