"""Reads the events that `tfdist train` writes into its output directory while it trains."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from tfdist.cluster.documents import read_text
from tfdist.errors import ConfigError
from tfdist.validation import number, quote, whole_number

# The file, in the output directory: a JSON object a line.
FILE = "events.jsonl"

_WANTED = "give the --output-dir of a tfdist train"
_MOST_BYTES = 256 << 20
# More digits than these are read as a float.
_MOST_DIGITS = 18


@dataclasses.dataclass(frozen=True)
class Run:
    """What happened in a run, over all its restarts.

    Attributes:
        name: Its directory's name.
        starts: The event of each start: its time, strategy, plan and versions.
        epochs: The event of each epoch's end, in order; the latest if an epoch was trained again
            after a restart.
        seconds: From the first start to the end of the latest epoch.
    """

    name: str
    starts: list[dict[str, Any]]
    epochs: list[dict[str, Any]]
    seconds: float

    @property
    def restarts(self) -> int:
        """How often it was restarted."""
        return max(0, len(self.starts) - 1)

    @property
    def restarted_in(self) -> list[int]:
        """The epochs, from 1, in which it was restarted."""
        return [int(start.get("epoch", 0)) + 1 for start in self.starts[1:]]

    def values(self, name: str) -> tuple[list[int], list[float]]:
        """Returns the epochs, from 1, that have a number, and the numbers."""
        rows = [
            (int(row["epoch"]) + 1, float(row[name]))
            for row in self.epochs
            if isinstance(row.get(name), int | float)
        ]
        return [epoch for epoch, _ in rows], [value for _, value in rows]


def read(path: pathlib.Path) -> Run:
    """Reads a run.

    Args:
        path: Its output directory, or the file in it.

    Raises:
        ConfigError: There is no such file, or it has no start of a run.
    """
    file = path / FILE if path.is_dir() else path
    try:
        text = read_text(str(file), _WANTED, most=_MOST_BYTES, errors="replace")
    except ConfigError as error:
        raise ConfigError(f"report: {error}") from None
    events = [event for line in text.splitlines() if (event := _event(line)) is not None]
    starts = [event for event in events if event["event"] == "start"]
    latest = {int(event["epoch"]): event for event in events if event["event"] == "epoch"}
    if not starts:
        raise ConfigError(f"report: {quote(str(file))} has no start of a run")
    epochs = [latest[number] for number in sorted(latest)]
    last = max((event["time"] for event in epochs), default=starts[-1]["time"])
    return Run(file.parent.name or str(file), starts, epochs, last - starts[0]["time"])


def _event(line: str) -> dict[str, Any] | None:
    """Returns a line's event; None if it was cut off, or is not an event of a run."""
    try:
        event = json.loads(line, parse_int=_integer)
        whole_number("epoch", event.get("epoch", 0), least=0)
        known = event["event"] == "start" or "epoch" in event
        return event if known and number("time", event["time"]) is not None else None
    except (AttributeError, ConfigError, KeyError, RecursionError, TypeError, ValueError):
        return None


def _integer(text: str) -> float:
    return int(text) if len(text) <= _MOST_DIGITS else float(text)
