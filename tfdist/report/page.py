"""Draws runs, and writes them as one page of HTML that needs nothing else."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tfdist.drawing import new_figure
from tfdist.report.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Name of a figure, and the numbers that it shows.
_BY_EPOCH = {"loss": ("loss", "val_loss"), "accuracy": ("accuracy", "val_accuracy")}

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1150px; padding: 0 1rem;
       color: #222 }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ddd; font-size: 14px }
.wide { overflow-x: auto }
th:first-child, td:first-child { text-align: left }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr));
           gap: 1rem }
figure { margin: 0 } img { width: 100% } figcaption { color: #666; font-size: 13px }
"""
_COLUMNS = (
    "run",
    "strategy",
    "replicas",
    "global batch",
    "epochs",
    "loss",
    "accuracy, held out",
    "images/s",
    "waiting for data",
    "memory, MB",
    "seconds",
    "restarts",
)


def figures(runs: Sequence[Run]) -> dict[str, bytes]:
    """Returns the figures by name, as PNGs.

    Raises:
        ConfigError: Matplotlib is not installed.
    """
    found = {}
    for name, numbers in _BY_EPOCH.items():
        found[f"{name} by epoch"] = _figure(runs, name, numbers, by_time=False)
        found[f"{name} by time"] = _figure(runs, name, numbers, by_time=True)
    found["throughput"] = _figure(runs, "images/s", ("images_per_second",), by_time=False)
    return found


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


def page(runs: Sequence[Run], figures: Mapping[str, bytes]) -> str:
    """Returns the page.

    Args:
        runs: The runs.
        figures: PNGs by name.
    """
    title = "tfdist: " + ", ".join(run.name for run in runs)
    rows = "\n".join(f"<tr>{''.join(map(_cell, row(run)))}</tr>" for run in runs)
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in _COLUMNS)
    drawn = "\n".join(
        f'<figure><img alt="{html.escape(name)}" '
        f'src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        f"<figcaption>{html.escape(name)}</figcaption></figure>"
        for name, png in figures.items()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<style>{_STYLE}</style></head>
<body><h1>{html.escape(title)}</h1>
<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>
{rows}
</tbody></table></div>
<p>Solid: held out; dotted: training. Dashed lines: the run was restarted.</p>
<div class="figures">
{drawn}
</div></body></html>
"""


def row(run: Run) -> list[str]:
    """Returns a run's row of the table."""
    first, last = run.starts[0], run.epochs[-1] if run.epochs else {}
    speeds = run.values("images_per_second")[1]
    waited, trained = sum(run.values("input_seconds")[1]), sum(run.values("train_seconds")[1])
    memory = run.values("memory")[1]
    return [
        run.name,
        str(first.get("strategy", "")),
        str(first.get("replicas", "")),
        str(first.get("global_batch", "")),
        str(len(run.epochs)),
        _number(last.get("loss"), ".4f"),
        _number(last.get("val_accuracy"), ".4f"),
        _number(sum(speeds) / len(speeds) if speeds else None, ",.1f"),
        f"{100 * waited / trained:.0f} %" if trained else "",
        _number(max(memory) / 1e6 if memory else None, ",.0f"),
        _number(run.seconds, ",.0f"),
        str(run.restarts),
    ]


def _number(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, int | float) else ""


def _cell(text: str) -> str:
    return f"<td>{html.escape(text)}</td>"
