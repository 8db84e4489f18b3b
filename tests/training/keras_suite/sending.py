"""Sends `fit`, `evaluate` and `predict` of Keras' own tests through a `tfdist.Trainer`."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

# Runs the tests with plain Keras, to see what it passes itself.
PLAIN = os.environ.get("KERAS_SUITE") == "plain"


def module_of_keras(name: str) -> Any:
    """Imports a test module of the installed Keras.

    One of them imports JAX, which it needs for what TensorFlow's tests leave out.
    """
    importlib.import_module("keras.src.testing")
    if "jax" in sys.modules:
        return importlib.import_module(name)
    with mock.patch.dict(sys.modules):
        sys.modules["jax"] = types.ModuleType("jax")
        module = importlib.import_module(name)
        loaded = {k: v for k, v in sys.modules.items() if k.split(".")[0] != "jax"}
    sys.modules.update(loaded)
    return module


@contextlib.contextmanager
def sent() -> Iterator[None]:
    """Sends the calls of every model through a `Trainer`, one for each model."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    import tfdist

    trainers: Any = weakref.WeakKeyDictionary()

    def through(method: str) -> Any:
        @functools.wraps(getattr(TensorFlowTrainer, method))
        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            if model not in trainers:
                # Not the trainer itself: it holds the model.
                trainers[model] = None
                object.__setattr__(model, "_sent_through", tfdist.Trainer(model))
            return getattr(model._sent_through, method)(*args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for method in ("fit", "evaluate", "predict") if not PLAIN else ():
            stack.enter_context(mock.patch.object(TensorFlowTrainer, method, through(method)))
        yield
