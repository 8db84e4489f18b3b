"""Keras callbacks on many workers: all of them decide, one of them writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tfdist.errors import ConfigError

# These write files; the other workers hold the same weights and logs and would only collide.
_WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
)


def callback_list(
    model: keras.Model,
    callbacks: Sequence[keras.callbacks.Callback] | None,
    *,
    is_chief: bool,
    verbose: int,
    **params: Any,
) -> keras.callbacks.CallbackList:
    """Makes the callback list for this worker.

    Args:
        model: The model.
        callbacks: The user's callbacks.
        is_chief: Whether this worker prints and writes files.
        verbose: 0, 1 (a bar) or 2 (a line an epoch).
        **params: `epochs` and `steps`, for the callbacks.

    Raises:
        ConfigError: `BackupAndRestore` is among them, which has no chief.
    """
    chosen = []
    for callback in callbacks or ():
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ConfigError(
                "callbacks: BackupAndRestore writes from every worker and forgets the step; "
                "use Trainer(model, checkpoint_dir=...) instead"
            )
        if is_chief or not isinstance(callback, _WRITERS):
            chosen.append(callback)
    return keras.callbacks.CallbackList(
        chosen, add_progbar=verbose != 0, model=model, verbose=verbose, **params
    )
