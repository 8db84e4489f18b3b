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

    Some import what is not installed, for tests that other backends run: JAX, and a mark of the
    `conftest` of Keras' own checkout.
    """
    importlib.import_module("keras.src.testing")
    jax, conftest = types.ModuleType("jax"), types.ModuleType("conftest")
    vars(conftest)["skip_if_backend"] = lambda backend, reason: _as_it_is
    lent = {"jax": jax, "conftest": conftest}
    with mock.patch.dict(sys.modules):
        for lacking, stand_in in lent.items():
            sys.modules.setdefault(lacking, stand_in)
        module = importlib.import_module(name)
        loaded = {k: v for k, v in sys.modules.items() if v not in lent.values()}
    sys.modules.update(loaded)
    return module


def _as_it_is(test: Any) -> Any:
    return test


@contextlib.contextmanager
def sent(strategy: Any = None) -> Iterator[None]:
    """Sends the calls of every model through a `Trainer`, one for each model.

    Args:
        strategy: What a test is to run under; None leaves it to the test.
    """
    import tensorflow as tf
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from tensorflow.python.eager import context

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
        # A test that splits the CPU for itself finds it split, for all tests of the process.
        stack.enter_context(mock.patch.object(context, "_reset_context"))
        stack.enter_context(mock.patch.object(tf.config, "set_logical_device_configuration"))
        if strategy is not None:
            stack.enter_context(strategy.scope())
        yield
