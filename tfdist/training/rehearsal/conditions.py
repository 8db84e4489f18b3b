"""What a model is tried under: weights and sample weights that are not special by accident."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.keras_internals import flatten_layers

# How far weights are moved, so that nothing is zero by accident; of their mean absolute value.
_MOVED = 0.05


def weights_varied(sample: Any) -> Any:
    """Gives the rows other sample weights where they have any: these may be all one by accident."""
    if not isinstance(sample, tuple) or len(sample) != 3 or sample[2] is None:
        return sample

    def vary(weights: Any) -> Any:
        if not isinstance(weights, tf.Tensor) or not weights.dtype.is_floating:
            return weights
        factors = tf.cast(0.5 + tf.range(tf.shape(weights)[0]) % 5 / 4, weights.dtype)
        return weights * tf.reshape(factors, [-1] + [1] * (weights.shape.rank - 1))

    return (*sample[:2], tf.nest.map_structure(vary, sample[2]))


@contextlib.contextmanager
def moved(model: keras.Model, by: float = _MOVED) -> Iterator[None]:
    """Moves the weights a little within the block."""
    generator = np.random.default_rng(0)
    kept = []
    try:
        for variable in model.trainable_variables:
            value = np.asarray(variable.numpy())
            kept.append((variable, value))
            if value.dtype.kind != "f" and str(value.dtype) != "bfloat16":
                continue
            size = np.abs(value.astype("float32")).mean() or 0.1
            step = generator.normal(size=value.shape).astype("float32") * np.float32(by * size)
            variable.assign((value.astype("float32") + step).astype(value.dtype))
        yield
    finally:
        for variable, value in kept:
            variable.assign(value)


@contextlib.contextmanager
def rounded(model: keras.Model) -> Iterator[None]:
    """Moves the weights in their last bits within the block, to see what rounding does."""
    types = {layer.compute_dtype for layer in flatten_layers(model)}
    half = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
    with moved(model, max((half.get(kind, 2.0**-22) for kind in types), default=2.0**-22)):
        yield


@contextlib.contextmanager
def synchronized(model: keras.Model) -> Iterator[None]:
    """Normalises over all slices within the block: that each has its own statistics is known."""
    plain = [
        layer
        for layer in flatten_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized
    ]
    with contextlib.ExitStack() as stack:
        for layer in plain:
            stack.enter_context(attribute(layer, "synchronized", True))
        yield


@contextlib.contextmanager
def attribute(thing: Any, name: str, value: Any) -> Iterator[None]:
    """Gives an object another attribute within the block."""
    missing = object()
    kept = vars(thing).get(name, missing)
    object.__setattr__(thing, name, value)
    try:
        yield
    finally:
        if kept is missing:
            object.__delattr__(thing, name)
        else:
            object.__setattr__(thing, name, kept)
