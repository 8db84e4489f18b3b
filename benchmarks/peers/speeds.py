"""Writes what was measured as a table, and draws it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.contenders import Comparison
from tfdist.drawing import new_figure

Speeds = Mapping[str, Sequence[float]]


def table(comparison: Comparison, speeds: Speeds) -> str:
    """Lists each contender's median, its spread, and its ratio to each round of the first.

    Args:
        comparison: What was compared.
        speeds: Steps a second of each round, by the contender's name; fewer rounds of some where
            it was interrupted.
    """
    first = next(iter(speeds.values()))
    width = max(len(name) for name in speeds)
    rounds = max(map(len, speeds.values()))
    lines = [
        f"{comparison.title} ({rounds} alternated rounds)",
        f"{'':<{width}}  {comparison.unit + '/s':>10}  {'lowest':>8}  {'highest':>8}  {'ratio':>6}",
    ]
    for name, values in speeds.items():
        ratio = statistics.median(a / b for a, b in zip(values, first, strict=False))
        many = [value * comparison.units for value in values]
        lines.append(
            f"{name:<{width}}  {statistics.median(many):>10.4g}  {min(many):>8.4g}  "
            f"{max(many):>8.4g}  {ratio:>6.2f}"
        )
    return "\n".join(lines)


def plot(measured: Mapping[str, Speeds], comparisons: Sequence[Comparison], path: Path) -> None:
    """Draws a bar for each contender of each comparison, as a PNG.

    Raises:
        ConfigError: Matplotlib is not installed.
    """
    heights = [len(measured[each.name]) for each in comparisons]
    figure = new_figure(9, 1.0 + 0.42 * sum(heights) + 0.5 * len(heights))
    axes = figure.subplots(len(comparisons), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, comparison in zip(axes, comparisons, strict=True):
        speeds = measured[comparison.name]
        middles = [statistics.median(v) * comparison.units for v in speeds.values()]
        apart = [
            [m - min(v) * comparison.units, max(v) * comparison.units - m]
            for m, v in zip(middles, speeds.values(), strict=True)
        ]
        colours = ["tab:blue" if "tfdist" in name else "lightgrey" for name in speeds]
        axis.barh(list(speeds), middles, xerr=list(zip(*apart, strict=True)), color=colours)
        axis.invert_yaxis()
        axis.set_title(comparison.title, fontsize=8, loc="left")
        axis.set_xlabel(f"{comparison.unit} a second", fontsize=8)
        axis.tick_params(labelsize=8)
    figure.savefig(path, dpi=120)
