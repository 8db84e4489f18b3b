"""`tfdist bench batch`: samples a second by batch size, and which batch to take."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfdist.benchmark import hardware
from tfdist.benchmark.benchmark import Benchmark, Figures, say
from tfdist.benchmark.trial import Setting, check_model, try_out
from tfdist.cli.arguments import Parser, count
from tfdist.drawing import new_figure
from tfdist.errors import TfdistError
from tfdist.launcher.machine import usable_cores
from tfdist.runtime.resources import available_bytes
from tfdist.scaling.scale import scale

# Of the best speed: a batch that reaches so much saturates the device.
SATURATED = 0.95
# Of the best speed: below that it has fallen.
_FALLEN = 0.9
# Of the free memory, so that other programs keep theirs.
_MEMORY = 0.8
_INTERRUPTED = "interrupted"


@dataclasses.dataclass(frozen=True)
class Speed:
    """What was measured with a batch size.

    Attributes:
        batch: Examples a step.
        step: Seconds a step.
        memory: Bytes of memory of the process.
    """

    batch: int
    step: float
    memory: int

    @property
    def samples(self) -> float:
        """Samples a second."""
        return self.batch / self.step


def measure(setting: Setting, limit: int) -> tuple[list[Speed], str]:
    """Doubles the batch from 1 until the speed falls, memory runs out, or a limit is reached.

    Args:
        setting: What is trained; its batch is not used.
        limit: The largest batch.

    Returns:
        What was measured, and why it ended; so far, on Ctrl-C.

    Raises:
        TfdistError: The first batch could not be trained on.
        KeyboardInterrupt: It was interrupted before anything was measured.
    """
    speeds: list[Speed] = []
    batch = 1
    try:
        while batch <= limit:
            if not _fits(speeds):
                return speeds, "memory would run out"
            try:
                found = try_out(
                    dataclasses.replace(setting, batch=batch), 1, cores=len(usable_cores())
                )
            except TfdistError:
                if not speeds:
                    raise
                return speeds, f"a batch of {batch} failed, as when memory runs out"
            speeds.append(Speed(batch, found["step"], int(found["memory"])))
            say(f"batch {batch}: {speeds[-1].samples:.4g} samples/s")
            if speeds[-1].samples < _FALLEN * max(each.samples for each in speeds):
                return speeds, "the speed falls"
            batch *= 2
    except KeyboardInterrupt:
        if not speeds:
            raise
        return speeds, _INTERRUPTED
    return speeds, f"the limit of {limit} is reached"


def _fits(speeds: Sequence[Speed]) -> bool:
    """Returns whether a batch of twice the last one is expected to fit into memory."""
    if len(speeds) < 2:
        return True
    growth = max(0, speeds[-1].memory - speeds[-2].memory)
    expected = speeds[-1].memory + 2 * growth
    return expected < _MEMORY * available_bytes()


def recommended(speeds: Sequence[Speed]) -> Speed:
    """Returns the smallest batch that saturates the device: a larger one only costs accuracy."""
    best = max(each.samples for each in speeds)
    return next(each for each in speeds if each.samples >= SATURATED * best)


def table(speeds: Sequence[Speed]) -> str:
    """Lists the batches."""
    best = max(each.samples for each in speeds)
    lines = [f"{'batch':>7}{'samples/s':>11}{'of the best':>13}{'step ms':>9}{'MB':>7}"]
    for each in speeds:
        mark = "  <-" if each == recommended(speeds) else ""
        lines.append(
            f"{each.batch:>7}{each.samples:>11.4g}{100 * each.samples / best:>11.0f} %"
            f"{1e3 * each.step:>9.4g}{each.memory / 1e6:>7.0f}{mark}"
        )
    return "\n".join(lines)


def rows(speeds: Sequence[Speed]) -> list[dict[str, float]]:
    """Returns plain rows, for JSON; times in seconds, memory in bytes."""
    return [{**dataclasses.asdict(each), "samples_per_second": each.samples} for each in speeds]


def plot(title: str, speeds: Sequence[Speed], path: Path) -> None:
    """Draws samples a second against the batch, as a PNG.

    Raises:
        ConfigError: Matplotlib is not installed.
    """
    figure = new_figure(6.5, 3.8)
    axis = figure.subplots()
    batches = [each.batch for each in speeds]
    axis.plot(batches, [each.samples for each in speeds], "o-", color="tab:blue")
    chosen, best = recommended(speeds), max(each.samples for each in speeds)
    axis.axvline(chosen.batch, color="tab:orange", linestyle=":")
    axis.annotate(
        f"{chosen.batch}: {100 * chosen.samples / best:.0f} % of the best",
        (chosen.batch, 0),
        (-6, 8),  # To the left: the chosen batch is among the largest.
        textcoords="offset points",
        ha="right",
        color="tab:orange",
        fontsize=9,
    )
    axis.set_xscale("log", base=2)
    axis.set_xticks(batches, [str(batch) for batch in batches])
    axis.set_ylim(0)
    axis.set_xlabel("batch")
    axis.set_ylabel("samples a second")
    axis.set_title(title, fontsize=10)
    figure.savefig(path, dpi=140)


def _add_flags(parser: Parser) -> None:
    parser.add_argument("--limit", type=count, default=256, help="the largest batch (256)")
    parser.add_argument(
        "--model", default="resnet50", help="resnet50, small_cnn or module:function (resnet50)"
    )
    parser.add_argument("--image-size", type=count, default=32, help="pixels (32)")
    parser.add_argument("--steps", type=count, default=5, help="steps on the clock (5)")
    parser.add_argument("--replicas", type=count, default=1, help="for the learning rate (1)")
    parser.add_argument(
        "--base-learning-rate", type=float, default=0.1, help="rate for a batch of 256 (0.1)"
    )


def _check(parser: Parser, options: argparse.Namespace) -> None:
    check_model(parser, options.model)
    if not (options.limit and options.steps and options.image_size and options.replicas):
        parser.error("limit, steps, pixels and replicas are 1 or more")


def _measure(options: argparse.Namespace) -> Iterator[Figures]:
    setting = Setting(
        model=options.model, image_size=options.image_size, steps=options.steps, warm_up=2
    )
    described = hardware.describe()
    say(hardware.line(described))
    speeds, end = measure(setting, options.limit)
    title = f"{options.model}, {options.image_size} pixels, one device"
    chosen = recommended(speeds)
    plan = scale(
        per_replica_batch=chosen.batch,
        num_replicas=options.replicas,
        base_learning_rate=options.base_learning_rate,
        base_batch=256,
        rule="linear",
    )
    yield Figures(
        f"\n{title}; stopped: {end}\n{table(speeds)}\n"
        f"recommended: {chosen.batch}, the smallest that reaches {100 * SATURATED:.0f} % of "
        f"the best speed; learning rate {plan.peak_learning_rate:.4g} for {plan.global_batch} on "
        f"{options.replicas} (linear, {options.base_learning_rate:g} for 256)",
        {"hardware": described, "end": end, "recommended": chosen.batch, "batches": rows(speeds)},
        functools.partial(plot, title, speeds),
        end != _INTERRUPTED,
    )


BENCHMARK = Benchmark(
    name="batch",
    summary="samples a second by batch size, and which one to take",
    description="Train on one device with batches of 1, 2, 4, ... until the speed falls, memory "
    "runs out or a limit is reached; recommend a batch, with the learning rate that belongs to it.",
    examples=(
        "tfdist bench batch --model small_cnn --limit 64",
        "tfdist bench batch --image-size 224 --replicas 8",
    ),
    add_flags=_add_flags,
    check=_check,
    measure=_measure,
    writes=("json", "plot"),
)
