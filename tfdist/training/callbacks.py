"""Makes Keras callbacks work on many workers: all workers call them, only the chief writes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import keras

from tfdist.errors import ConfigError
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
    *,
    is_chief: bool,
    alone: bool = False,
    added: Sequence[keras.callbacks.Callback] = (),
    add_history: bool = False,
    verbose: int | str,
    **params: Any,
) -> keras.callbacks.CallbackList:
    """Makes the callback list for this worker.

    Args:
        model: The model.
        callbacks: The user's callbacks: one, several or a `CallbackList`.
        is_chief: Whether this worker prints and writes files.
        alone: Whether one device trains, as with plain Keras.
        added: Callbacks to be called after the user's.
        add_history: Whether to add a `History`.
        verbose: 0, 1 (a bar) or 2 (a line an epoch); "auto" is a bar on a terminal and a line
            elsewhere. Only the chief prints.
        **params: `epochs` and `steps`, for the callbacks.

    Raises:
        ConfigError: One is no callback, or is `BackupAndRestore`, which would write from every
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
