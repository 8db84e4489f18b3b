"""Has a callback run once in a job instead of once a worker."""

from __future__ import annotations

from collections.abc import Callable

import keras

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.validation import quote


def on_chief(
    callback: keras.callbacks.Callback | Callable[[], keras.callbacks.Callback],
) -> keras.callbacks.Callback:
    """Returns a callback that acts on the chief only, such as one that reports to a tracker.

    All workers call their callbacks with the same logs, so a tracker would get each figure from
    each of them. Callbacks of Keras' own that write files need it not: the chief alone has them.
    A callback that stops training, or sets weights, belongs on all workers.

    Args:
        callback: The callback; or a function that makes it, called on the chief only, where the
            making itself signs in or opens a file.

    Returns:
        It on the chief, and on the other workers one that does nothing.

    Raises:
        ConfigError: It is no callback, or the environment describes a malformed cluster.

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
    made = callback if isinstance(callback, keras.callbacks.Callback) else callback()
    if not isinstance(made, keras.callbacks.Callback):
        raise ConfigError(
            f"on_chief(callback): {quote(made)} is given; allowed: a keras.callbacks.Callback, or "
            "a function that returns one"
        )
    return made
