"""Writes what was measured as tables and as JSON, and draws it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.benchmark.collectives.cells import (
    ALL_REDUCE,
    KB,
    MEMORY,
    RAW,
    SOCKET,
    Cell,
    Row,
    missing,
)
from tfdist.collectives.transport_names import FLOAT32
from tfdist.drawing import new_figure
from tfdist.errors import ConfigError
from tfdist.scaling.network import Link, fit_link, worst_error
from tfdist.scaling.quantities import duration, si

_MB = KB * KB
_COLOURS = {
    SOCKET: "black",
    ALL_REDUCE: "tab:blue",
    "all_gather": "tab:orange",
    "reduce_scatter": "tab:green",
    "broadcast": "tab:red",
    "gather": "tab:purple",
    "scatter": "tab:brown",
}
_STYLES = {"ring": "-", "tensorflow": "--", "memory": ":", SOCKET: "-"}


def size_text(size: int) -> str:
    """Returns bytes as `256 KB`, in powers of 1024 as nccl-tests' sizes are."""
    for unit, name in ((_MB, "MB"), (KB, "KB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"


def links(rows: Sequence[Row]) -> dict[str, tuple[Link, float]]:
    """Fits latency and bandwidth to each transport's all-reduces in float32.

    Returns:
        The link and the largest relative error of the model, by the transport's name. Transports
        without enough sizes are left out.
    """
    found = {}
    for transport in dict.fromkeys(row.cell.transport for row in rows):
        points = [
            (row.size, row.seconds)
            for row in rows
            if row.cell == Cell(ALL_REDUCE, transport, FLOAT32)
        ]
        try:
            link = fit_link(points, rows[0].workers)
        except ConfigError:
            continue
        found[transport] = (link, worst_error(points, rows[0].workers, link))
    return found


def table(rows: Sequence[Row]) -> str:
    """Returns times, bandwidths, the fitted links and what could not be measured."""
    if not rows:
        return "nothing was measured"
    parts = [
        _matrix("median time, µs", rows, _microseconds),
        _matrix(
            "algorithm bandwidth, GB/s", rows, lambda row: f"{row.algorithm_bandwidth / 1e9:.3g}"
        ),
        _matrix(
            "bus bandwidth, GB/s; of the fastest call's bytes on the wire, % of the raw socket's",
            rows,
            lambda row: f"{row.bus_bandwidth / 1e9:.3g}",
            _of_the_socket(rows),
        ),
    ]
    lines = [
        f"{transport}: all-reduce as by latency {duration(link.latency)} and "
        f"{si(link.bandwidth, 'B/s')}, off by {100 * error:.0f} % at most"
        for transport, (link, error) in links(rows).items()
    ]
    lines += missing([row.cell for row in rows if row.cell != RAW])
    return "\n\n".join([*parts, "\n".join(lines)]).rstrip()


def to_dict(rows: Sequence[Row], hardware: Mapping[str, str]) -> dict[str, Any]:
    """Returns all figures in bytes and seconds, ready for JSON that `tfdist plan` reads."""
    return {
        "hardware": dict(hardware),
        "workers": rows[0].workers if rows else None,
        "links": {
            transport: {
                "latency": link.latency,
                "bandwidth": link.bandwidth,
                "worst_error": error,
            }
            for transport, (link, error) in links(rows).items()
        },
        "rows": [row.to_dict() for row in rows],
    }


def plot(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draws times and bus bandwidths against sizes, of arrays sent in float32, as a PNG.

    Raises:
        ConfigError: Matplotlib is not installed, or the file cannot be written.
    """
    figure = new_figure(11, 5)
    left, right = figure.subplots(1, 2)
    for cell, of_cell in _by_cell(rows).items():
        if cell.wire_type != FLOAT32:
            continue
        style = {"color": _COLOURS[cell.operation], "linestyle": _STYLES[cell.transport]}
        sizes = [row.size for row in of_cell]
        left.plot(sizes, [1e6 * row.seconds for row in of_cell], marker=".", **style)
        speeds = [row.bus_bandwidth / 1e9 for row in of_cell]
        right.plot(sizes, speeds, marker=".", label=str(cell), **style)
    ticks = sorted({row.size for row in rows if row.cell == RAW})[::2]
    for axes in (left, right):
        axes.set_xscale("log", base=4)
        axes.set_yscale("log")
        axes.set_xticks(ticks, [size_text(size) for size in ticks], fontsize=8)
        axes.minorticks_off()
        axes.set_xlabel("array")
        axes.grid(alpha=0.3)
    left.set_ylabel("median time, µs")
    right.set_ylabel("bus bandwidth, GB/s")
    right.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.suptitle(title, fontsize=10)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigError(f"plot: {str(path)!r} cannot be written ({error.strerror})") from None


def _microseconds(row: Row) -> str:
    value = 1e6 * row.seconds
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _by_cell(rows: Sequence[Row]) -> dict[Cell, list[Row]]:
    found: dict[Cell, list[Row]] = {}
    for row in rows:
        found.setdefault(row.cell, []).append(row)
    return found


def _matrix(
    title: str,
    rows: Sequence[Row],
    text: Callable[[Row], str],
    last: Mapping[Cell, str] | None = None,
) -> str:
    """Returns a line for each cell and a column for each size."""
    cells = _by_cell(rows)
    # The sizes of other rows are rounded to whole elements for each worker.
    columns = sorted({row.size for row in cells.get(RAW, rows)})
    width = max(len(str(cell)) for cell in cells)
    lines = [title, " " * width + "".join(f"{size_text(size):>9}" for size in columns)]
    for cell, of_cell in cells.items():
        at = {min(columns, key=lambda size: abs(size - row.size)): row for row in of_cell}
        numbers = "".join(f"{text(at[size]) if size in at else '':>9}" for size in columns)
        more = "" if last is None else f"{last.get(cell, ''):>7}"
        lines.append(f"{cell!s:<{width}}{numbers}{more}")
    return "\n".join(lines)


def _of_the_socket(rows: Sequence[Row]) -> dict[Cell, str]:
    """Returns the percentage of the raw socket's bandwidth, of cells that send."""
    best = {
        cell: max(row.best_wire_bandwidth for row in of_cell)
        for cell, of_cell in _by_cell(rows).items()
    }
    socket = best.get(RAW, math.nan)
    return {
        cell: f"{100 * each / socket:.0f} %"
        for cell, each in best.items()
        if cell.transport != MEMORY and math.isfinite(socket)
    }
