"""`tfdist bench input`: what the data pipeline delivers, stage by stage, and what steps need."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist.benchmark import hardware
from tfdist.benchmark.benchmark import Benchmark, Figures, say, until_interrupted
from tfdist.benchmark.trial import Setting, check_model, try_out
from tfdist.cli.arguments import Parser, count, seconds
from tfdist.drawing import new_figure
from tfdist.launcher.machine import usable_cores

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.data import Source

# Elements of the first try.
_FIRST = 32
ADVICE = {
    "read": "put the files on a disk of the node, in fewer and larger files",
    "memory": "give the process more cores: nothing is read or decoded",
    "decode": "give the process more cores, store smaller images, or decode them once: what fits "
    "into 512 MB decoded is kept in memory",
    "augment": "give the process more cores, augment less, or store images of the size trained on",
    "resize": "store images of the size trained on",
    "batch": "take a smaller batch, or give the process more memory bandwidth",
    "transfer": "send less: smaller images, or a smaller type",
}


@dataclasses.dataclass(frozen=True)
class Stage:
    """What the pipeline delivers up to a stage.

    Attributes:
        name: The stage.
        examples: Examples a second.
    """

    name: str
    examples: float


def measure(
    source: Source, global_batch: int, seconds: float, *, augment: bool = True
) -> Iterator[Stage]:
    """Reads from each stage for a while, by itself.

    Args:
        source: The data set.
        global_batch: Examples in a batch.
        seconds: How long each is read from.
        augment: Whether images are augmented.

    Raises:
        ConfigError: The data set has nothing to read, or `global_batch` is out of range.
    """
    stages = source.stages(global_batch, augment=augment)
    for name, dataset in stages.items():
        rate = _rate(dataset, seconds)
        yield Stage(name, rate * (global_batch if name == "batch" else 1))
    yield Stage("transfer", _rate_on_device(stages["batch"], seconds) * global_batch)


def _rate(dataset: tf.data.Dataset, seconds: float) -> float:
    """Returns elements a second of an endless data set, counted inside TensorFlow."""
    import tensorflow as tf

    from tfdist.data.iterators import untuned

    count = _FIRST
    while True:
        some = untuned(dataset.take(count))
        began = time.perf_counter()
        some.reduce(tf.constant(0), lambda number, *_: number + 1).numpy()
        took = time.perf_counter() - began
        # Half of the time, at least, so that starting does not count.
        if took > seconds / 2:
            return count / took
        count *= max(2, int(seconds / max(took, 1e-3) / 2))


def _rate_on_device(dataset: tf.data.Dataset, seconds: float) -> float:
    """Returns batches a second that arrive on the device that trains."""
    import tensorflow as tf

    from tfdist.data.iterators import iterator_of

    device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    batches = iterator_of(dataset)
    next(batches)
    began, count = time.perf_counter(), 0
    while time.perf_counter() < began + seconds:
        with tf.device(device):
            moved = tf.nest.map_structure(tf.identity, next(batches))
        tf.nest.map_structure(lambda tensor: tensor[:0].numpy(), moved)  # Waits for it.
        count += 1
    return count / (time.perf_counter() - began)


def slowest(stages: Sequence[Stage]) -> Stage:
    """Returns the stage that adds most to the time of an example."""
    before, worst, most = 0.0, stages[0], 0.0
    for stage in stages:
        added = 1 / stage.examples - before
        if added > most:
            worst, most = stage, added
        before = 1 / stage.examples
    return worst


def table(stages: Sequence[Stage], need: float) -> str:
    """Lists the stages, each together with those before it.

    Args:
        stages: As `measure` returns them.
        need: Examples a second that the steps consume.
    """
    lines = [f"{'up to':>10}{'examples/s':>13}{'us each':>10}{'of the need':>13}"]
    for stage in stages:
        share = f"{stage.examples / need:.1f} x" if need else "-"
        lines.append(
            f"{stage.name:>10}{stage.examples:>13,.0f}{1e6 / stage.examples:>10.1f}{share:>13}"
        )
    return "\n".join(lines)


def verdict(stages: Sequence[Stage], need: float) -> str:
    """Returns whether the pipeline is fast enough, and what to change if not."""
    delivered = stages[-1].examples
    worst = slowest(stages)
    if delivered >= need:
        return (
            f"the pipeline delivers {delivered / need:.1f} x what the steps take "
            f"({need:,.0f} examples/s): they do not wait for it; slowest is {worst.name}"
        )
    return (
        f"the pipeline delivers {100 * delivered / need:.0f} % of what the steps take "
        f"({need:,.0f} examples/s), which wait for it; slowest is {worst.name}: "
        f"{ADVICE[worst.name]}"
    )


def plot(title: str, stages: Sequence[Stage], need: float, path: Path) -> None:
    """Draws examples a second up to each stage, and the need, as a PNG.

    Raises:
        ConfigError: Matplotlib is not installed.
    """
    figure = new_figure(6.5, 3.4)
    axis = figure.subplots()
    names = [stage.name for stage in stages]
    bars = axis.barh(names, [stage.examples for stage in stages], color="tab:blue")
    axis.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.margins(x=0.15)
    axis.axvline(need, color="tab:orange", linestyle=":", label=f"needed: {need:,.0f}")
    axis.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), fontsize=9)
    axis.set_xlabel("examples a second, up to this stage")
    axis.set_title(title, fontsize=10, loc="right")
    figure.savefig(path, dpi=140)


def _add_flags(parser: Parser) -> None:
    parser.add_argument("--dataset", default="digits", help="as for tfdist train (digits)")
    parser.add_argument("--data-dir", metavar="DIR", help="where it is kept")
    parser.add_argument("--image-size", type=count, default=32, help="pixels (32)")
    parser.add_argument("--global-batch", type=count, default=32, help="examples a step (32)")
    parser.add_argument("--need", type=float, help="examples/s of the steps (they are timed)")
    parser.add_argument(
        "--model", default="resnet50", help="of these steps: resnet50, small_cnn or module:function"
    )
    parser.add_argument("--seconds", type=seconds, default=3.0, help="for each stage (3)")


def _check(parser: Parser, options: argparse.Namespace) -> None:
    check_model(parser, options.model)
    if not (options.global_batch and options.image_size and options.seconds):
        parser.error("global_batch, pixels and seconds are more than 0")
    if options.need is not None and not 0 < options.need < 1e12:
        parser.error(f"--need {options.need:g}: allowed: examples a second, more than 0")


def _measure(options: argparse.Namespace) -> Iterator[Figures]:
    from tfdist import data

    source = data.load(
        options.dataset, data_dir=options.data_dir, image_size=options.image_size, channels=3
    )
    described = hardware.describe()
    say(hardware.line(described))
    stages, is_whole = until_interrupted(
        measure(source, options.global_batch, options.seconds),
        lambda found: f"{found[-1].name}: {found[-1].examples:,.0f} examples/s",
    )
    need = options.need
    if need is None:
        need = _need(options.model, options.global_batch, options.image_size)
    title = f"{source.name}, {options.image_size} pixels, batches of {options.global_batch}"
    rates = {stage.name: stage.examples for stage in stages}
    yield Figures(
        f"\n{title}\n{table(stages, need)}\n{verdict(stages, need)}",
        {"hardware": described, "need": need, "stages": rates},
        functools.partial(plot, title, stages, need),
        is_whole,
    )


def _need(model: str, batch: int, image_size: int) -> float:
    """Returns the examples a second of training on all cores, on data that costs nothing."""
    setting = Setting(model=model, batch=batch, image_size=image_size, warm_up=2, steps=6)
    return batch / try_out(setting, 1, cores=len(usable_cores()))["step"]


BENCHMARK = Benchmark(
    name="input",
    summary="what the data pipeline delivers, stage by stage, and what steps take",
    description="Read a data set through the training pipeline, up to each of its stages; compare "
    "what it delivers with what the steps take, and say what to change.",
    examples=("tfdist bench input --dataset digits --need 500",),
    add_flags=_add_flags,
    check=_check,
    measure=_measure,
    writes=("json", "plot"),
)
