"""Measures what more replicas or workers bring, and what a step of theirs consists of."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from tfdist.benchmark.trial import Setting, try_out
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
            waited = together["input"]
            points.append(
                Point(
                    count,
                    setting.per_replica(count) * count,
                    together["step"],
                    alone["step"] - alone["input"],
                    waited,
                    int(together["memory"]),
                    int(together["examples"]),
                )
            )
            last = points[-1]
            say(
                f"{count} {setting.of}: {last.speed:.4g} samples/s, efficiency "
                f"{100 * last.efficiency(points[0]):.0f} %"
            )
    except KeyboardInterrupt:
        say("interrupted; what was measured so far:")
    return points


def table(setting: Setting, points: Sequence[Point]) -> str:
    """Lists the points."""
    kind = "strong" if setting.is_strong else "weak"
    lines = [
        f"{kind} scaling, {setting.model}, {setting.data} data, {setting.image_size} pixels, "
        f"{setting.batch} a {'step' if setting.is_strong else 'replica'}",
        f"{setting.of:>9}{'batch':>7}{'samples/s':>11}{'efficiency':>12}{'of no wire':>12}"
        f"{'step ms':>9}{'compute':>9}{'wire':>7}{'input':>7}{'MB':>7}{'epoch s':>9}",
    ]
    for point in points:
        shares = [point.compute, point.wire, point.input]
        lines.append(
            f"{point.count:>9}{point.batch:>7}{point.speed:>11.4g}"
            f"{100 * point.efficiency(points[0]):>10.0f} %"
            f"{100 * point.without_communication:>10.0f} %"
            f"{1e3 * point.step:>9.4g}"
            + "".join(
                f"{100 * part / point.step:>{width - 2}.0f} %"
                for part, width in zip(shares, (9, 7, 7), strict=True)
            )
            + f"{point.memory / 1e6:>7.0f}{f'{point.epoch:.4g}' if point.examples else '-':>9}"
        )
    return "\n".join(lines)


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
    kind = "strong" if setting.is_strong else "weak"
    figure.suptitle(
        f"{kind} scaling: {setting.model}, {setting.image_size} pixels, {setting.batch} a "
        f"{'step' if setting.is_strong else 'replica'}",
        fontsize=10,
    )
    figure.savefig(path, dpi=140)
