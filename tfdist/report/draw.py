"""Draws runs: what they learned by epoch and by time, and how fast."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfdist.drawing import new_figure
from tfdist.report.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Name of a figure, and the numbers that it shows.
_BY_EPOCH = {"loss": ("loss", "val_loss"), "accuracy": ("accuracy", "val_accuracy")}


def figures(runs: Sequence[Run]) -> dict[str, bytes]:
    """Returns the figures by name, as PNGs.

    Raises:
        ConfigError: Matplotlib is not installed.
    """
    made = {}
    for name, numbers in _BY_EPOCH.items():
        made[f"{name} by epoch"] = _figure(runs, name, numbers, by_time=False)
        made[f"{name} by time"] = _figure(runs, name, numbers, by_time=True)
    made["throughput"] = _figure(runs, "images/s", ("images_per_second",), by_time=False)
    return made


def _figure(runs: Sequence[Run], label: str, numbers: Sequence[str], *, by_time: bool) -> bytes:
    figure = new_figure(6.2, 3.4, "report")
    from matplotlib.ticker import MaxNLocator

    axis = figure.subplots()
    for number, run in enumerate(runs):
        _draw(axis, run, numbers, f"C{number}", by_time=by_time)
    axis.set_xlabel("seconds since the first start" if by_time else "epoch")
    axis.set_ylabel(label)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlim(left=0)
    if label == "images/s":
        axis.set_ylim(0)
    axis.grid(alpha=0.25)
    if axis.get_legend_handles_labels()[1]:
        axis.legend(frameon=False, fontsize=8)
    output = io.BytesIO()
    figure.savefig(output, format="png", dpi=140)
    return output.getvalue()


def _draw(axis: Axes, run: Run, numbers: Sequence[str], colour: str, *, by_time: bool) -> None:
    began = run.starts[0]["time"]
    when = {int(row["epoch"]) + 1: row["time"] - began for row in run.epochs}
    for name in numbers:
        epochs, values = run.values(name)
        if not epochs:
            continue
        held_out = name.startswith("val_")
        what = {"images_per_second": run.name}.get(
            name, f"{run.name}, {'held out' if held_out else 'training'}"
        )
        places = [when[epoch] for epoch in epochs] if by_time else epochs
        style = "-" if held_out or len(numbers) == 1 else ":"
        axis.plot(places, values, style, marker=".", color=colour, label=what)
    for restart, epoch in zip(run.starts[1:], run.restarted_in, strict=True):
        place = restart["time"] - began if by_time else epoch
        axis.axvline(place, color=colour, linewidth=0.8, linestyle="--", alpha=0.6)
