"""Says how many steps a call of TensorFlow makes, and whether its logs are read.

To read the metrics costs the host a fraction of a millisecond: as much as a small model's step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import keras


@dataclass(frozen=True)
class Calls:
    """The calls of one `fit`.

    Attributes:
        most: The largest number of steps that a call may make.
        are_read: Whether a callback of this worker reads the logs of a call.
    """

    most: int
    are_read: bool


def read_batches(callbacks: Sequence[keras.callbacks.Callback]) -> bool:
    """Returns whether a callback may look at the batches of training, one by one.

    Args:
        callbacks: Callbacks; that of Keras for progress looks at batches only where it draws a bar.
    """
    names = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    return any(
        not getattr(getattr(callback, name), "_is_default", False)
        for callback in callbacks
        for name in names
        if not getattr(callback, "reads_no_batches", False)
        and not (isinstance(callback, keras.callbacks.ProgbarLogger) and callback.verbose != 1)
    )
