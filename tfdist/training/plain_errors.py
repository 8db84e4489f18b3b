"""Makes a trainer raise tfdist's errors where TensorFlow raises one about peers or files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from tfdist.collectives.peer_errors import naming_peers
from tfdist.training.input.check import unreadable

_Method = TypeVar("_Method", bound=Callable[..., Any])


def plain_errors(method: _Method) -> _Method:
    """Makes a method raise a `PeerError` or a `ConfigError` instead, if one says more.

    Args:
        method: A method of an object whose `_group` is its `ProcessGroup` and whose `_feeds` know
            the data.
    """
    inner = naming_peers(method)

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return inner(self, *args, **kwargs)
        except tf.errors.OpError as error:
            found = unreadable(error, self._feeds.sources)
            if found is None:
                raise
            raise found from error

    return wrapped  # type: ignore[return-value]
