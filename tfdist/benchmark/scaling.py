"""`tfdist bench scaling`: what more replicas or workers bring, and what a step consists of."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tfdist.benchmark import hardware
from tfdist.benchmark.benchmark import Benchmark, Figures, say, until_interrupted
from tfdist.benchmark.trial import Setting, check_model, try_here, try_out
from tfdist.cli.arguments import Parser, count
from tfdist.cli.output import output
from tfdist.cluster import Cluster
from tfdist.drawing import new_figure
from tfdist.launcher.machine import usable_cores


@dataclasses.dataclass(frozen=True)
class Point:
    """What was measured with a number of replicas.

    Attributes:
        count: The replicas.
        batch: Examples a step, of all of them.
        step: Seconds a step.
        compute: Seconds of it in which the slowest replica computes, measured with as many
            processes that train without communication.
        input: Seconds of it in which the step waits for its data.
        memory: Bytes of memory of the first process.
        examples: Examples of an epoch; 0 if they are endless.
    """

    count: int
    batch: int
    step: float
    compute: float
    input: float
    memory: int
    examples: int = 0

    @property
    def wire(self) -> float:
        """Seconds of a step spent waiting for other replicas: neither compute nor input."""
        # In this order nothing is left over by rounding where all of a step is compute and input.
        return max(0.0, self.step - self.input - self.compute)

    @property
    def speed(self) -> float:
        """Samples a second, of all replicas."""
        return self.batch / self.step

    @property
    def epoch(self) -> float:
        """Seconds of an epoch; 0.0 if the data is endless."""
        return self.examples / self.speed

    def efficiency(self, one: Point) -> float:
        """Returns samples a second over those of as many single replicas."""
        return self.speed / (self.count * one.speed / one.count)

    @property
    def without_communication(self) -> float:
        """The speed over that of the step without communication."""
        return (self.compute + self.input) / self.step if self.step else 0.0


def default_counts() -> list[int]:
    """Returns 1, 2, 4, ... up to the number of cores, and 8."""
    return [n for n in (1, 2, 4, 8) if n <= max(2, len(usable_cores()))]


def measure(setting: Setting, counts: Sequence[int]) -> Iterator[Point]:
    """Trains with each number of replicas, and as many processes without communication.

    Each worker has as many cores as in the largest run, so that a single one has no advantage.

    Args:
        setting: What is trained.
        counts: The numbers of replicas, ascending.

    Raises:
        TfdistError: A run failed or took too long.
    """
    cores = max(1, len(usable_cores()) // max(counts))
    for number in counts:
        alone = try_out(setting, number, cores=cores, together=False)
        together = alone if number == 1 else try_out(setting, number, cores=cores)
        yield _point(number, setting.per_replica(number) * number, together, alone)


def measure_here(setting: Setting, cluster: Cluster) -> list[Point]:
    """Measures, as a task of a cluster, all of its workers, and this one without communication.

    Args:
        setting: What is trained.
        cluster: The cluster of this task, of workers only.

    Returns:
        The points of one worker and of all; only the chief returns any.

    Raises:
        ConfigError: The setting cannot be used with that number of workers.
        TfdistError: A run failed, or a worker was lost.
    """
    count = cluster.num_workers
    batch = setting.per_replica(count)
    alone = one = try_here(setting, cluster, together=False)
    if setting.is_strong:
        whole = dataclasses.replace(setting, is_strong=False)
        one = try_here(whole, cluster, together=False)
    together = try_here(setting, cluster, together=True)
    if alone is None or one is None or together is None:
        return []
    return [
        _point(1, setting.batch, one, one),
        _point(count, batch * count, together, alone),
    ]


def _point(count: int, batch: int, run: dict[str, float], alone: dict[str, float]) -> Point:
    return Point(
        count,
        batch,
        run["step"],
        alone["step"] - alone["input"],
        run["input"],
        int(run["memory"]),
        int(run["examples"]),
    )


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        head: Its head; "" for what the replicas of a setting are.
        width: Characters, with those that separate it from the column before.
        text: Returns the cell of a point; the second argument is the first point of the table.
    """

    head: str
    width: int
    text: Callable[[Point, Point], str]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


COLUMNS = (
    Column("", 9, lambda point, one: f"{point.count}"),
    Column("batch", 7, lambda point, one: f"{point.batch}"),
    Column("samples/s", 11, lambda point, one: f"{point.speed:.4g}"),
    Column("efficiency", 12, lambda point, one: _percent(point.efficiency(one))),
    Column("of no wire", 12, lambda point, one: _percent(point.without_communication)),
    Column("step ms", 9, lambda point, one: f"{1e3 * point.step:.4g}"),
    Column("compute", 9, lambda point, one: _percent(point.compute / point.step)),
    Column("wire", 7, lambda point, one: _percent(point.wire / point.step)),
    Column("input", 7, lambda point, one: _percent(point.input / point.step)),
    Column("MB", 7, lambda point, one: f"{point.memory / 1e6:.0f}"),
    Column("epoch s", 9, lambda point, one: f"{point.epoch:.4g}" if point.examples else "-"),
)


def title(setting: Setting) -> str:
    """Returns what is measured, in a line."""
    kind, of_a = ("strong", "step") if setting.is_strong else ("weak", "replica")
    return (
        f"{kind} scaling, {setting.model}, {setting.data} data, {setting.image_size} pixels, "
        f"{setting.batch} a {of_a}"
    )


def cells(setting: Setting, points: Sequence[Point]) -> list[list[str]]:
    """Returns the heads of the table's columns, and then a row for each point."""
    heads = [column.head or setting.of for column in COLUMNS]
    return [heads, *([column.text(each, points[0]) for column in COLUMNS] for each in points)]


def table(setting: Setting, points: Sequence[Point]) -> str:
    """Lists the points: with lines and colours on a terminal."""
    if sys.stdout.isatty():
        return _rich_table(setting, points)
    lines = (
        "".join(f"{cell:>{column.width}}" for cell, column in zip(row, COLUMNS, strict=True))
        for row in cells(setting, points)
    )
    return "\n".join(["", title(setting), *lines])


def _rich_table(setting: Setting, points: Sequence[Point]) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    heads, *rows = cells(setting, points)
    # Eleven columns in the 80 of a terminal.
    found = Table(title=title(setting), title_justify="left", box=SIMPLE_HEAD, padding=0)
    for head in heads:
        found.add_column(head.replace(" ", "\n"), justify="right", vertical="bottom", no_wrap=True)
    for row in rows:
        found.add_row(*row)
    console = Console()
    with console.capture() as capture:
        console.print(found)
    return capture.get().rstrip("\n")


def rows(points: Sequence[Point]) -> list[dict[str, float]]:
    """Returns the points for JSON and CSV; times in seconds, memory in bytes."""
    return [
        {
            **dataclasses.asdict(point),
            "wire": point.wire,
            "samples_per_second": point.speed,
            "efficiency": point.efficiency(points[0]),
            "of_no_communication": point.without_communication,
            "epoch": point.epoch,
        }
        for point in points
    ]


def write_csv(points: Sequence[Point], path: Path) -> None:
    """Writes the points as CSV."""
    found = rows(points)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        writer.writerows(found)


def plot(setting: Setting, points: Sequence[Point], path: Path) -> None:
    """Draws samples a second, efficiency, and the shares of a step, as a PNG.

    Raises:
        ConfigError: Matplotlib is not installed.
    """
    figure = new_figure(11, 3.6)
    speed, shares = figure.subplots(1, 2)
    counts = [point.count for point in points]
    speed.plot(counts, [p.speed for p in points], "o-", color="tab:blue", label="measured")
    one = points[0].speed / points[0].count
    speed.plot(counts, [one * n for n in counts], ":", color="grey", label="linear")
    for point in points:
        label = f"{100 * point.efficiency(points[0]):.0f} %"
        speed.annotate(
            label,
            (point.count, point.speed),
            (0, -16),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
    speed.set_xticks(counts)
    speed.margins(x=0.1)
    speed.set_ylim(0)
    speed.set_xlabel(setting.of)
    speed.set_ylabel("samples a second")
    speed.legend(frameon=False)
    names = [str(count) for count in counts]
    below = [0.0] * len(points)
    for label, colour in (("compute", "tab:blue"), ("wire", "tab:orange"), ("input", "tab:green")):
        parts = [1e3 * getattr(point, label) for point in points]
        shares.bar(names, parts, bottom=below, color=colour, label=label, width=0.5)
        below = [a + b for a, b in zip(below, parts, strict=True)]
    shares.set_xlabel(setting.of)
    shares.set_ylabel("ms a step")
    shares.legend(frameon=False)
    figure.suptitle(title(setting), fontsize=10)
    figure.savefig(path, dpi=140)


def _add_flags(parser: Parser) -> None:
    parser.add_argument(
        "--counts", nargs="+", type=count, metavar="N", help="how many (1 2 4 8, up to the cores)"
    )
    parser.add_argument(
        "--of",
        choices=("workers", "replicas"),
        help="workers: local processes; replicas: of one process, on virtual CPUs (workers)",
    )
    parser.add_argument(
        "--per-replica-batch", type=count, metavar="B", help="weak scaling: examples each (32)"
    )
    parser.add_argument(
        "--global-batch", type=count, metavar="B", help="strong scaling: examples of all together"
    )
    parser.add_argument(
        "--model", default="resnet50", help="resnet50, small_cnn or module:function (resnet50)"
    )
    parser.add_argument(
        "--dataset", default="synthetic", help="a name, as for tfdist train (synthetic)"
    )
    parser.add_argument("--image-size", type=count, default=32, help="pixels (32)")
    parser.add_argument("--steps", type=count, default=12, help="steps on the clock (12)")
    parser.add_argument("--csv", type=output, metavar="FILE", help="also write the figures as CSV")


def _check(parser: Parser, options: argparse.Namespace) -> None:
    if options.per_replica_batch is not None and options.global_batch is not None:
        parser.error("--per-replica-batch is for weak scaling, --global-batch for strong; give one")
    counts = _counts(options)
    if not counts[0] or not options.steps or not options.image_size:
        parser.error("counts, steps and pixels are 1 or more")
    check_model(parser, options.model)
    cluster = Cluster.from_environment()
    if cluster.is_local:
        for each in counts:
            _setting(options).per_replica(each)
        return
    for name in ("counts", "of"):
        if getattr(options, name) is not None:
            parser.error(
                f"--{name} is given in a cluster of {cluster.num_workers} workers "
                f"({cluster.source}), which are measured as they are; leave it out"
            )
    roles = sorted({task.type for task in cluster.tasks} - {"chief", "worker"})
    if roles:
        parser.error(f"the cluster has {roles[0]} tasks; allowed: a chief and workers")


def _counts(options: argparse.Namespace) -> list[int]:
    return sorted(set(options.counts or default_counts()))


def _setting(options: argparse.Namespace) -> Setting:
    return Setting(
        of=options.of or "workers",
        batch=options.global_batch or options.per_replica_batch or 32,
        is_strong=options.global_batch is not None,
        model=options.model,
        data=options.dataset,
        image_size=options.image_size,
        steps=options.steps,
    )


def _measure(options: argparse.Namespace) -> Iterator[Figures]:
    setting, cluster = _setting(options), Cluster.from_environment()
    described = hardware.describe()
    if cluster.is_chief:
        say(hardware.line(described))

    def line(points: Sequence[Point]) -> str:
        last, efficiency = points[-1], _percent(points[-1].efficiency(points[0]))
        return f"{last.count} {setting.of}: {last.speed:.4g} samples/s, efficiency {efficiency}"

    found = (
        measure(setting, _counts(options))
        if cluster.is_local
        else iter(measure_here(setting, cluster))
    )
    points, is_whole = until_interrupted(found, line)
    if not points:
        return  # The chief has them.
    if options.csv:
        write_csv(points, options.csv)
    yield Figures(
        table(setting, points),
        {"hardware": described, "points": rows(points)},
        functools.partial(plot, setting, points),
        is_whole,
    )


BENCHMARK = Benchmark(
    name="scaling",
    summary="samples a second and efficiency with more workers or replicas",
    description="Train with 1, 2, 4, ... workers or replicas, and with as many processes without "
    "communication: samples a second, efficiency, and what a step consists of. Between processes "
    "of this machine, or as a task of the cluster that the environment describes: this worker "
    "alone, and then all of them.",
    examples=(
        "tfdist bench scaling --counts 1 2 --model small_cnn",
        "tfdist bench scaling --of replicas --global-batch 64",
        "tfdist launch --workers 2 tfdist bench scaling",
    ),
    add_flags=_add_flags,
    check=_check,
    measure=_measure,
    writes=("json", "plot"),
)
