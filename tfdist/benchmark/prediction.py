"""Compares the steps that `tfdist plan` predicts with steps that are measured.

For each number of workers: as many processes train each by itself, which gives the time of a step's
computation on a machine that is as busy; the same number train together over the ring's connections
and then time its all-reduces, which gives α and β. Gradients are sent after the backward pass, on
cores that have no time for both. What is predicted from these is compared with the step measured.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.benchmark.peers.contenders import Contender
from tfdist.benchmark.peers.hosts import LOOPBACK
from tfdist.benchmark.peers.measure import run
from tfdist.errors import ConfigError
from tfdist.scaling.network import Link, fit_link
from tfdist.scaling.prediction import Model, Step

_SIZES = tuple(4**power << 10 for power in range(4, 9))  # 256 KB to 64 MB
_CALLS = 7
_STEPS = {"resnet50": 15, "small": 500}
_PATIENCE = 900.0


@dataclass(frozen=True)
class Comparison:
    """A predicted step beside the measured one.

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


def measure(
    workers: Sequence[int], model: str, rounds: int, say: Callable[[str], None] = print
) -> list[Comparison]:
    """Measures each number of workers, alone and together in turn.

    Args:
        workers: The numbers of workers.
        model: "resnet50" (32 x 32 pixels, 32 images a worker) or "small".
        rounds: How often; medians count.
        say: Receives a line a round.

    Raises:
        TfdistError: A run failed or took too long.
    """
    found: list[Comparison] = []
    try:
        for count in workers:
            alone, together = [], []
            for _ in range(rounds):
                alone.append(_run(count, model, together=False))
                together.append(_run(count, model, together=True))
            points = [(size, t) for each in together for size, t in each["all_reduces"]]
            comparison = Comparison(
                count,
                statistics.median(each["step"] for each in alone),
                fit_link(points, count) if count > 1 else None,
                int(together[0]["gradient_bytes"]),
                statistics.median(each["step"] for each in together),
            )
            found.append(comparison)
            say(
                f"{count} workers: predicted {1e3 * comparison.predicted.seconds:.4g} ms, measured "
                f"{1e3 * comparison.measured:.4g} ms"
            )
    except KeyboardInterrupt:
        say("interrupted; what was measured so far:")
    return found


def table(comparisons: Sequence[Comparison]) -> str:
    """Lists predicted and measured steps, and their relative difference."""
    lines = [
        f"{'workers':>8}{'alone':>10}{'latency':>10}{'bandwidth':>12}{'all-reduce':>12}"
        f"{'predicted':>11}{'measured':>10}{'error':>8}",
        f"{'':>8}{'ms':>10}{'µs':>10}{'GB/s':>12}{'ms':>12}{'ms':>11}{'ms':>10}{'%':>8}",
    ]
    for each in comparisons:
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


def checked(workers: Sequence[int], rounds: int) -> None:
    """Checks the arguments.

    Raises:
        ConfigError: There is nothing to measure.
    """
    if rounds < 1 or not all(workers):
        raise ConfigError(
            f"bench prediction: {rounds} rounds of {list(workers)} workers are given; "
            "allowed: 1 or more of each"
        )


def _run(workers: int, model: str, *, together: bool) -> dict[str, Any]:
    contender = Contender("prediction", "prediction", {"worker": workers})
    work = {
        "program": "prediction",
        "model": model,
        "warm_up": _STEPS[model],
        "steps": _STEPS[model],
        "options": {"alone": not together},
    }
    result: dict[str, Any] = run(contender, work, None, _PATIENCE, [LOOPBACK])["prediction"]
    return result


def train(
    make_model: Callable[[], Any], seconds: Callable[[Any, int], float], alone: bool
) -> dict[str, Any]:
    """Trains as one of the processes, and times all-reduces where it has others.

    Args:
        make_model: Returns the compiled model.
        seconds: Trains with a `fit` for a number of workers; returns the seconds of a step.
        alone: Whether each process trains by itself.
    """
    if alone:
        os.environ.pop("TF_CONFIG", None)
    import tfdist
    from tfdist.collectives import choose
    from tfdist.collectives.process_group import ProcessGroup
    from tfdist.collectives.ring.wiring import ring_of

    choose._waiting_is_idle = lambda ring: False  # As the prediction has it.
    strategy = tfdist.build_strategy("auto", tfdist.Cluster.from_environment())
    with strategy.scope():
        model = make_model()
    group = ProcessGroup(strategy)
    workers = group.layout.workers
    trainer = tfdist.Trainer(model, transport="ring" if workers > 1 else "auto")
    step = seconds(trainer.fit, workers)
    ring = ring_of(strategy, group)[0] if workers > 1 else None
    return {
        "step": step,
        "all_reduces": [] if ring is None else _all_reduces(ring),
        "gradient_bytes": sum(4 * math.prod(w.shape) for w in model.trainable_weights),
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
