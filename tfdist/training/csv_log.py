"""Lets Keras' `CSVLogger` go on in its file when training is resumed, where it would begin anew."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Sequence
from pathlib import Path

import keras

from tfdist.files import write_whole


def go_on(callbacks: Sequence[keras.callbacks.Callback], epoch: int) -> None:
    """Keeps the rows of the epochs before `epoch`, and has those from it on added to them.

    To be called before the callbacks open their files.

    Args:
        callbacks: Callbacks, among which those of other classes are left alone.
        epoch: The epoch at which training is resumed.
    """
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger) and not callback.append:
            # Without a file, or with another one of that name, it does what it would have done.
            with contextlib.suppress(OSError, ValueError, csv.Error):
                callback.append = _cut(Path(callback.filename), callback.sep, epoch)


def _cut(path: Path, separator: str, epoch: int) -> bool:
    """Removes the rows from an epoch on; returns whether the file is such a log with rows left."""
    with path.open(newline="") as file:
        header, *rows = csv.reader(file, delimiter=separator)
    if header[0] != "epoch":
        return False
    kept = [row for row in rows if row and int(row[0]) < epoch]
    with write_whole(path) as new, new.open("w", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([header, *kept])
    return bool(kept)
