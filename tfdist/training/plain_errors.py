"""Wraps a trainer's methods: converts TensorFlow's errors, leaves scopes, names the call."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from tfdist.collectives.peer_errors import naming_peers
from tfdist.collectives.process_group import NO_CALL
from tfdist.errors import ConfigError
from tfdist.keras_internals import outside_scope
from tfdist.training.input.check import unreadable
from tfdist.validation import did_you_mean, reject

_BEYOND = re.compile(r"slice index -?\d+ of dimension 0 out of bounds")
_Method = TypeVar("_Method", bound=Callable[..., Any])


def plain_errors(method: _Method) -> _Method:
    """Makes a method raise a `PeerError` or a `ConfigError` for a known error of TensorFlow.

    An argument that the method does not have is a `ConfigError`, too.

    It leaves the scope that it is called in: callbacks make variables on one worker alone.
    Every exchange within the method sends its name, so that workers in other calls are detected.

    Args:
        method: A method of an object whose `_group` is its `ProcessGroup` and whose `_feeds` are
            its `Feeds`.
    """
    inner = outside_scope()(naming_peers(method))
    known = [name for name in inspect.signature(method).parameters if name != "self"]

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in known:
                hint = did_you_mean(name, known) or f"; allowed: {', '.join(known)}"
                reject(f"{method.__name__}({name})", f"is not an argument of Trainer's{hint}")
        self._group.call = method.__name__
        try:
            return inner(self, *args, **kwargs)
        except tf.errors.OpError as error:
            found = unreadable(error, self._feeds.sources) or _beyond_its_slice(
                error, self._group.layout.replicas
            )
            if found is None:
                raise
            raise found from error
        finally:
            self._group.call = NO_CALL

    return wrapped  # type: ignore[return-value]


def _beyond_its_slice(error: tf.errors.OpError, replicas: int) -> ConfigError | None:
    """Returns the error of a step that indexes a row that its replica's slice does not have."""
    found = _BEYOND.search(str(error))
    if found is None or replicas == 1:
        return None
    return ConfigError(
        f"the model's step indexes a row that its part of a batch does not have ({found[0]}): the "
        f"first dimension of the data is divided among {replicas} replicas; make the examples the "
        "first dimension"
    )
