"""Writes the results of a run: each file whole or not at all, and the history over restarts."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import keras


def write_whole(path: pathlib.Path, text: str) -> None:
    """Writes a file of text beside its place, then puts it there."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    os.replace(new, path)


class History(keras.callbacks.Callback):
    """The metrics of all epochs of a run, in a file that is whole after each of them.

    Epochs before the first one of this process are kept from the file, the others written anew.

    Args:
        path: The file; None to write none.
    """

    def __init__(self, path: pathlib.Path | None) -> None:
        super().__init__()
        self._path = path
        self._epochs: dict[int, dict[str, Any]] = {}
        self._begun = False

    @property
    def last(self) -> dict[str, Any]:
        """The metrics of the latest epoch by name; empty before the end of the first."""
        return self._epochs[max(self._epochs)] if self._epochs else {}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Reads what an earlier process has written."""
        if self._path is not None:
            self._epochs = _read(self._path)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Forgets the epochs from the first one on that is trained now."""
        if not self._begun:
            self._begun = True
            self._epochs = {e: row for e, row in self._epochs.items() if e < epoch}

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the file."""
        self._epochs[epoch] = dict(logs or {})
        if self._path is not None:
            write_whole(self._path, json.dumps(_columns(self._epochs), indent=2) + "\n")


def _columns(epochs: dict[int, dict[str, Any]]) -> dict[str, list[Any]]:
    """Returns one list a metric, and the numbers of the epochs; None where one lacks the metric."""
    names = {name: None for row in epochs.values() for name in row}
    columns: dict[str, list[Any]] = {"epoch": sorted(epochs)}
    for name in names:
        columns[name] = [epochs[epoch].get(name) for epoch in columns["epoch"]]
    return columns


def _read(path: pathlib.Path) -> dict[int, dict[str, Any]]:
    try:
        columns = json.loads(path.read_text())
        numbers = columns.pop("epoch", None) or range(len(next(iter(columns.values()), [])))
        return {
            int(number): {name: values[place] for name, values in columns.items()}
            for place, number in enumerate(numbers)
        }
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return {}  # There is none, or it is not one of ours.
