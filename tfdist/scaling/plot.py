"""Draws the predicted efficiency against the number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.drawing import new_figure
from tfdist.errors import ConfigError
from tfdist.scaling.prediction import Step


def plot_efficiency(predictions: Mapping[str, Sequence[Step]], title: str, path: Path) -> None:
    """Draws a line for each prediction, as a PNG.

    Args:
        predictions: Steps of rising numbers of workers, by the prediction's name.
        title: What is trained.
        path: The file.

    Raises:
        ConfigError: Matplotlib is not installed, or the file cannot be written.
    """
    figure = new_figure(8, 4.5)
    axes = figure.subplots()
    for style, (name, steps) in zip(("-", "--", ":", "-."), predictions.items(), strict=False):
        workers = [step.workers for step in steps]
        axes.plot(workers, [100 * s.efficiency for s in steps], style, marker=".", label=name)
    axes.set_xscale("log", base=2)
    ticks = sorted({step.workers for steps in predictions.values() for step in steps})
    axes.set_xticks(ticks, [f"{count:,}" for count in ticks], fontsize=8)
    axes.minorticks_off()
    axes.set_ylim(0, 104)
    axes.set_xlabel("workers")
    axes.set_ylabel("efficiency, % of one worker's speed each")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigError(f"plot: {str(path)!r} cannot be written ({error.strerror})") from None
