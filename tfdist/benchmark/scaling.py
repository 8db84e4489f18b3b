"""Measures what more replicas or workers bring, and what a step of theirs consists of."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from tfdist.benchmark.trial import Setting, try_here, try_out
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
        compute: Seconds of that in which the slowest replica computes, as measured by letting as
            many processes train without communication.
        input: Seconds of it in which the step waits for its data.
        memory: Bytes of memory of the first process.
        examples: Examples of an epoch; 0 where there is no end to them.
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
        """Seconds of a step in which it waits for others: what is neither compute nor input."""
        return max(0.0, self.step - self.compute - self.input)

    @property
    def speed(self) -> float:
        """Samples a second, of all replicas."""
        return self.batch / self.step

    @property
    def epoch(self) -> float:
        """Seconds of an epoch; 0.0 where there is no end to the data."""
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


def measure(
    setting: Setting, counts: Sequence[int], *, say: Callable[[str], None] = print
) -> list[Point]:
    """Trains with each number of replicas, and as many processes without communication.

    Each worker has as many cores as in the largest run, so that a single one is not favoured.
    What was measured so far is returned on Ctrl-C.

    Args:
        setting: What is trained.
        counts: The numbers of replicas, ascending.
        say: Receives a line a run.

    Raises:
        ConfigError: The setting cannot be used with a count.
        TfdistError: A run failed or took too long.
    """
    cores = max(1, len(usable_cores()) // max(counts))
    for count in counts:
        setting.per_replica(count)
    points: list[Point] = []
    try:
        for count in counts:
            alone = try_out(setting, count, cores=cores, together=False)
            together = alone if count == 1 else try_out(setting, count, cores=cores)
            points.append(_point(count, setting.per_replica(count) * count, together, alone))
            say(_line(setting, points[-1], points[0]))
    except KeyboardInterrupt:
        say("interrupted; what was measured so far:")
    return points


def measure_here(
    setting: Setting, cluster: Cluster, *, say: Callable[[str], None] = print
) -> list[Point]:
    """Measures, as a task of a cluster, all of its workers, and this one without communication.

    Args:
        setting: What is trained.
        cluster: The cluster of this task, of workers only.
        say: Receives a line a run.

    Returns:
        The points of one worker and of all; nothing but in the chief.

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
    points = [
        _point(1, setting.batch, one, one),
        _point(count, batch * count, together, alone),
    ]
    for point in points:
        say(_line(setting, point, points[0]))
    return points


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


def _line(setting: Setting, point: Point, one: Point) -> str:
    efficiency = 100 * point.efficiency(one)
    return f"{point.count} {setting.of}: {point.speed:.4g} samples/s, efficiency {efficiency:.0f} %"


_WIDTHS = (9, 7, 11, 12, 12, 9, 9, 7, 7, 7, 9)


def title(setting: Setting) -> str:
    """Returns what is measured, in a line."""
    kind, of_a = ("strong", "step") if setting.is_strong else ("weak", "replica")
    return (
        f"{kind} scaling, {setting.model}, {setting.data} data, {setting.image_size} pixels, "
        f"{setting.batch} a {of_a}"
    )


def cells(setting: Setting, points: Sequence[Point]) -> list[list[str]]:
    """Returns the heads of the table's columns, and then a row a point."""
    found = [
        [setting.of, "batch", "samples/s", "efficiency", "of no wire"]
        + ["step ms", "compute", "wire", "input", "MB", "epoch s"]
    ]
    for point in points:
        shares = (point.efficiency(points[0]), point.without_communication)
        parts = (part / point.step for part in (point.compute, point.wire, point.input))
        found.append(
            [f"{point.count}", f"{point.batch}", f"{point.speed:.4g}"]
            + [f"{100 * share:.0f} %" for share in shares]
            + [f"{1e3 * point.step:.4g}"]
            + [f"{100 * part:.0f} %" for part in parts]
            + [f"{point.memory / 1e6:.0f}", f"{point.epoch:.4g}" if point.examples else "-"]
        )
    return found


def table(setting: Setting, points: Sequence[Point]) -> str:
    """Lists the points."""
    lines = (
        "".join(f"{cell:>{width}}" for cell, width in zip(row, _WIDTHS, strict=True))
        for row in cells(setting, points)
    )
    return "\n".join([title(setting), *lines])


def rows(points: Sequence[Point]) -> list[dict[str, float]]:
    """Returns the points as plain rows, for JSON and CSV; times in seconds, memory in bytes."""
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
    """Writes the rows."""
    made = rows(points)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(made[0]) if made else [])
        writer.writeheader()
        writer.writerows(made)


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
