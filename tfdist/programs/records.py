"""Records a run in its folder, over restarts: the history and the events of its epochs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.files import write_whole
from tfdist.report.run import FILE
from tfdist.runtime.resources import resident_bytes
from tfdist.training.session import EpochTiming

# The folder of TensorBoard's files in that of the run.
BOARD = "tensorboard"


class History(keras.callbacks.Callback):
    """The metrics of all epochs of a run, in a file that is whole after each of them.

    Epochs before the first one of this process are kept from the file, the others are replaced.

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
            with write_whole(self._path) as new:
                new.write_text(json.dumps(_columns(self._epochs), indent=2) + "\n")


def _columns(epochs: dict[int, dict[str, Any]]) -> dict[str, list[Any]]:
    """Returns a list per metric, and the numbers of the epochs; None where one lacks the metric."""
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
        return {}  # There is none, or another program has written it.


class Events(keras.callbacks.Callback):
    """Adds a line when a run starts, and one at the end of each of its epochs.

    The figures of epochs are written for TensorBoard too, where it is installed. What cannot be
    written is left out: it must not end training.

    Args:
        folder: The run's output directory.
        global_batch: Examples per step.
        timings: `Trainer.timings`.
        start: Further fields of the line of the start.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        global_batch: int,
        timings: Sequence[EpochTiming],
        start: dict[str, Any],
    ) -> None:
        super().__init__()
        self._path = folder / FILE
        self._batch = global_batch
        self._timings = timings
        self._start: dict[str, Any] | None = start
        self._board: Any = None
        if importlib.util.find_spec("tensorboard") is not None:
            self._board = tf.summary.create_file_writer(str(folder / BOARD))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the start, with the epoch that it begins or continues with."""
        if self._start is not None:
            self._write("start", epoch, attempt=_attempt(), **self._start)
            self._start = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the epoch's metrics, and where its time went."""
        timing = self._timings[-1]
        figures = {
            "steps": timing.steps,
            "train_seconds": timing.seconds,
            "input_seconds": timing.input_seconds,
            "images_per_second": timing.steps * self._batch / max(timing.seconds, 1e-9),
            "learning_rate": _rate(self.model.optimizer),
            "memory": resident_bytes(),
            **(logs or {}),
        }
        self._write("epoch", epoch, **figures)
        if self._board is not None:
            with self._board.as_default():
                for name, value in figures.items():
                    if value is not None:
                        tf.summary.scalar(name, value, step=epoch + 1)
            self._board.flush()

    def _write(self, event: str, epoch: int, **fields: Any) -> None:
        line = {"event": event, "time": time.time(), "epoch": epoch, **fields}
        with contextlib.suppress(OSError), self._path.open("a") as file:
            file.write(json.dumps(line, default=float) + "\n")


def _attempt() -> int:
    text = os.environ.get("TFDIST_ATTEMPT", "1")
    return int(text) if text.isascii() and text.isdigit() else 1


def _rate(optimizer: Any) -> float | None:
    with contextlib.suppress(AttributeError, TypeError, ValueError):
        return float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    return None
