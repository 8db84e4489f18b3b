"""Sends `fit`, `evaluate` and `predict` of Keras' own tests through a `tfdist.Trainer`."""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import os
import sys
import types
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
def sent(strategy: Any = None) -> Iterator[collections.Counter[str]]:
    """Sends the calls of every model through a `Trainer`, one for each model.

    Args:
        strategy: What a test runs under, and what its models must then have been made under; None
            leaves that to the test.

    Yields:
        How often each method was called.
    """
    import keras
    import tensorflow as tf
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.testing import test_case
    from tensorflow.python.eager import context

    import tfdist

    calls: collections.Counter[str] = collections.Counter()

    def through(method: str) -> Any:
        @functools.wraps(getattr(TensorFlowTrainer, method))
        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            assert strategy is None or model.distribute_strategy is strategy
            calls[method] += 1
            if "_sent_through" not in vars(model):
                # A plain attribute, not one that Keras tracks: the trainer holds the model.
                object.__setattr__(model, "_sent_through", tfdist.Trainer(model))
            return getattr(model._sent_through, method)(*args, **kwargs)

        return call

    compile_ = keras.src.trainers.trainer.Trainer.compile

    @functools.wraps(compile_)
    def without_xla(model: Any, *args: Any, **kwargs: Any) -> Any:
        # XLA cannot compile collectives: tfdist says so. What the tests are about goes without.
        jit = kwargs.get("jit_compile", "auto")
        return compile_(model, *args, **(kwargs | {"jit_compile": False if jit is True else jit}))

    with contextlib.ExitStack() as stack:
        for method in ("fit", "evaluate", "predict") if not PLAIN else ():
            stack.enter_context(mock.patch.object(TensorFlowTrainer, method, through(method)))
        # A test that splits the CPU for itself finds it split, for all tests of the process.
        stack.enter_context(mock.patch.object(context, "_reset_context"))
        stack.enter_context(mock.patch.object(tf.config, "set_logical_device_configuration"))
        # As each test does at its start, where it would forget that it is in a strategy's scope.
        keras.utils.clear_session(free_memory=False)
        stack.enter_context(mock.patch.object(test_case, "clear_session"))
        keras.utils.set_random_seed(1)
        if strategy is not None:
            stack.enter_context(
                mock.patch.object(keras.src.trainers.trainer.Trainer, "compile", without_xla)
            )
            stack.enter_context(strategy.scope())
        yield calls
