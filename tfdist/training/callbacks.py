"""Makes Keras callbacks work on many workers, of which the chief alone writes, and on resuming."""

from __future__ import annotations

import contextlib
import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.files import write_whole
from tfdist.keras_internals import outside_scope
from tfdist.validation import quote

# These write files; the other workers hold the same weights and logs and would only collide.
_WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
)


def callback_list(
    model: keras.Model,
    callbacks: Any,
    verbose: int | str,
    *,
    is_chief: bool,
    alone: bool = False,
    added: Sequence[keras.callbacks.Callback] = (),
    add_history: bool = False,
    **params: Any,
) -> keras.callbacks.CallbackList:
    """Makes the callback list for this worker.

    Args:
        model: The model.
        callbacks: The user's callbacks: one, several or a `CallbackList`.
        verbose: 0, 1 (a bar) or 2 (a line an epoch); "auto" is a bar on a terminal and a line
            elsewhere. Only the chief prints.
        is_chief: Whether this worker prints and writes files.
        alone: Whether one device trains, as with plain Keras.
        added: Callbacks to be called after the user's.
        add_history: Whether to add a `History`.
        **params: `epochs` and `steps`, for the callbacks.

    Raises:
        ConfigError: One is not a callback, or is `BackupAndRestore`, which would write from every
            worker; or `verbose` is something else.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        if alone:
            return callbacks
        callbacks = callbacks.callbacks
    if verbose == "auto":
        verbose = 1 if sys.stdout.isatty() else 2
    try:
        verbose = int(verbose) if is_chief else 0
    except (TypeError, ValueError):
        raise ConfigError(f"verbose: {quote(verbose)} is given; allowed: 'auto', 0, 1, 2") from None
    chosen = []
    for callback in keras.tree.flatten(callbacks) if callbacks else ():
        if isinstance(callback, type) or not hasattr(callback, "set_model"):
            raise ConfigError(
                f"callbacks: {quote(callback)} is given; allowed: instances of "
                "keras.callbacks.Callback"
            )
        if not alone and isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ConfigError(
                "callbacks: BackupAndRestore writes from every worker and forgets the step; "
                "use Trainer(model, checkpoint_dir=...) instead"
            )
        if is_chief or not isinstance(callback, _WRITERS):
            chosen.append(callback)
    return keras.callbacks.CallbackList(
        [*chosen, *added],
        add_history=add_history,
        add_progbar=verbose != 0,
        model=model,
        verbose=verbose,
        **params,
    )


def history_of(every: keras.callbacks.CallbackList) -> keras.callbacks.History:
    """Returns the `History` among the callbacks; an empty one where there is none."""
    kept = (c for c in every.callbacks if isinstance(c, keras.callbacks.History))
    return next(kept, None) or keras.callbacks.History()


def on_chief(
    callback: keras.callbacks.Callback | Callable[[], keras.callbacks.Callback],
) -> keras.callbacks.Callback:
    """Returns a callback that acts on the chief only, such as one that reports to a tracker.

    All workers call their callbacks with the same logs, so a tracker would get each figure from
    each of them. Keras' own callbacks that write files do not need it: only the chief has them.
    A callback that stops training, or sets weights, belongs on all workers.

    Args:
        callback: The callback; or a function that makes it, called on the chief only, for
            callbacks that sign in or open a file when they are made.

    Returns:
        The callback on the chief, and on the other workers one that does nothing.

    Raises:
        ConfigError: It is not a callback, or the environment describes a malformed cluster.

    Example:
        >>> import keras
        >>> report = keras.callbacks.RemoteMonitor("http://tracker.example.com")
        >>> tfdist.on_chief(report) is report
        True
        >>> type(tfdist.on_chief(lambda: keras.callbacks.TerminateOnNaN())).__name__
        'TerminateOnNaN'
    """
    if not Cluster.from_environment().is_chief:
        return keras.callbacks.Callback()
    with outside_scope():
        made = callback if isinstance(callback, keras.callbacks.Callback) else callback()
    if not isinstance(made, keras.callbacks.Callback):
        raise ConfigError(
            f"on_chief(callback): {quote(made)} is given; allowed: a keras.callbacks.Callback, or "
            "a function that returns one"
        )
    return made


def continue_csv_logs(callbacks: Sequence[keras.callbacks.Callback], epoch: int) -> None:
    """Makes each `CSVLogger` continue its file when training resumes, instead of starting again.

    The rows of the epochs before `epoch` are kept. To be called before the callbacks open their
    files.

    Args:
        callbacks: Callbacks, among which those of other classes are left as they are.
        epoch: The epoch at which training resumes.
    """
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger) and not callback.append:
            # Without a file, or with another one of that name, it does what it would have done.
            with contextlib.suppress(OSError, ValueError, csv.Error):
                callback.append = _cut_rows(Path(callback.filename), callback.sep, epoch)


def _cut_rows(path: Path, separator: str, epoch: int) -> bool:
    """Removes the rows from an epoch on; returns whether the file is such a log with rows left."""
    with path.open(newline="") as file:
        header, *rows = csv.reader(file, delimiter=separator)
    if header[0] != "epoch":
        return False
    kept = [row for row in rows if row and int(row[0]) < epoch]
    with write_whole(path) as new, new.open("w", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([header, *kept])
    return bool(kept)
