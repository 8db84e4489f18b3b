"""Makes random functions draw the same for a row, whichever slice of the batch it is in."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.keras_internals import KERAS_RANDOM, RANDOM_OPS


class Draws(contextlib.AbstractContextManager["Draws"]):
    """Replaces the random operations that Keras and TensorFlow draw with, while entered.

    The n-th draw of a step is the same tensor in every step. If its first dimension is the slice's
    number of rows, a slice gets the part that belongs to its rows. What cannot be drawn row by row
    is a constant: a permutation is the identity, a gamma or a Poisson variate is its mean.

    Example:
        >>> with Draws() as draws:
        ...     draws.begin(all_rows=7, first=3, count=4)  # in each replica
    """

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._patches = contextlib.ExitStack()

    def begin(self, all_rows: Any, first: Any, count: Any) -> None:
        """Begins a replica's step.

        Args:
            all_rows: The number of rows of the batch.
            first: The number of the slice's first row.
            count: The number of rows that the replica computes on.
        """
        self._of_thread.number = 0
        self._of_thread.rows = (all_rows, first, count)

    def __enter__(self) -> Draws:
        for module in RANDOM_OPS:
            for name, function in self._replacements().items():
                if hasattr(module, name):
                    self._patches.enter_context(_replaced(module, name, function))
        for module in KERAS_RANDOM:
            self._patches.enter_context(_replaced(module, "draw_seed", _seed(module.draw_seed)))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _replacements(self) -> dict[str, Callable[..., Any]]:
        uniform, normal = tf.raw_ops.StatelessRandomUniform, tf.raw_ops.StatelessRandomNormal
        truncated = tf.raw_ops.StatelessTruncatedNormal
        of_floats: dict[str, Any] = {
            "random_uniform": uniform,
            "random_standard_normal": normal,
            "truncated_normal": truncated,
            "stateless_random_uniform": uniform,
            "stateless_random_normal": normal,
            "stateless_truncated_normal": truncated,
            "stateless_random_uniform_v2": uniform,
            "stateless_random_normal_v2": normal,
            "stateless_truncated_normal_v2": truncated,
        }
        made: dict[str, Callable[..., Any]] = {
            name: self._floats(operation) for name, operation in of_floats.items()
        }
        made |= dict.fromkeys(
            ("random_uniform_int", "stateless_random_uniform_int"), self._integers
        )
        return made | {
            "stateless_random_uniform_int_v2": self._integers,
            "stateless_random_uniform_full_int": self._any_integers,
            "stateless_random_uniform_full_int_v2": self._any_integers,
            "random_shuffle": lambda value, *_, **__: tf.identity(value),
            "stateless_shuffle": lambda value, *_, **__: tf.identity(value),
            "multinomial": _likeliest,
            "stateless_multinomial": _likeliest,
            "random_gamma": _means,
            "random_poisson_v2": _means,
        }

    def _floats(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def draw(shape: Any, *args: Any, dtype: Any = tf.float32, **_: Any) -> Any:
            kinds = [a for a in args if isinstance(a, tf.DType)]
            wanted = tf.as_dtype(kinds[-1] if kinds else dtype)
            return self._drawn(shape, lambda s, seed: operation(shape=s, seed=seed, dtype=wanted))

        return draw

    def _integers(self, shape: Any, *args: Any, **named: Any) -> Any:
        minimum = named.get("minval", args[-2] if len(args) >= 2 else 0)
        maximum = named.get("maxval", args[-1] if args else 2)
        lowest = tf.convert_to_tensor(minimum)
        highest = tf.cast(maximum, lowest.dtype)
        return self._drawn(
            shape,
            lambda s, seed: tf.raw_ops.StatelessRandomUniformInt(
                shape=s, seed=seed, minval=lowest, maxval=highest
            ),
        )

    def _any_integers(self, shape: Any, *_: Any, dtype: Any = tf.uint64, **__: Any) -> Any:
        return self._drawn(
            shape,
            lambda s, seed: tf.raw_ops.StatelessRandomUniformFullInt(
                shape=s, seed=seed, dtype=tf.as_dtype(dtype)
            ),
        )

    def _drawn(self, shape: Any, draw: Callable[[Any, Any], Any]) -> Any:
        number = getattr(self._of_thread, "number", None)
        if number is None:
            return draw(shape, [0, 0])
        self._of_thread.number += 1
        shape = tf.cast(tf.convert_to_tensor(shape), tf.int32)
        known = tf.get_static_value(shape, partial=True)
        if shape.shape.num_elements() == 0 or (
            known is not None and known[0] is not None and not tf.executing_eagerly()
        ):
            return draw(shape, [number, 0])
        all_rows, first, count = self._of_thread.rows
        by_row = tf.equal(shape[0], count)
        begin = tf.where(by_row, first, 0)
        whole = tf.concat([[tf.where(by_row, all_rows, shape[0])], shape[1:]], axis=0)
        return draw(whole, [number, 0])[begin : begin + shape[0]]


def _seed(draw_seed: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns what draws the next seed of a generator, and makes none where none is given."""
    return lambda seed: tf.zeros([2], tf.uint32) if seed is None else draw_seed(seed)


def _likeliest(logits: Any, num_samples: Any, *_: Any, **named: Any) -> Any:
    best = tf.argmax(logits, axis=-1, output_type=named.get("output_dtype", tf.int64))
    return tf.repeat(best[:, None], num_samples, axis=1)


def _means(shape: Any, mean: Any, *_: Any, **named: Any) -> Any:
    mean = tf.convert_to_tensor(mean)
    value = tf.broadcast_to(mean, tf.concat([shape, tf.shape(mean)], axis=0))
    return tf.cast(value, named.get("dtype", mean.dtype))


@contextlib.contextmanager
def _replaced(module: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    kept = getattr(module, name)
    setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, kept)
