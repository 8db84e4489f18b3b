"""What a program of the table is, and the small data and the draws that programs share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.training.conformance.setting import Feature, Recipe, Setting, generator

Make = Callable[[Setting], Recipe]
PROGRAMS: dict[str, Program] = {}


@dataclasses.dataclass(frozen=True)
class Program(Feature):
    """A row of the table.

    Attributes:
        path: The example's path below https://keras.io/examples/.
        shows: What of Keras it needs.
        dtype: What it computes in: float64 where rounding in float32 would hide a wrong number.
        differs: Strategies under which it gives other numbers by its nature, with the reason.
    """

    path: str = ""
    shows: str = ""
    dtype: str = "float32"
    differs: dict[str, str] = dataclasses.field(default_factory=dict)


def program(
    path: str, shows: str, dtype: str = "float32", **options: Any
) -> Callable[[Make], Make]:
    """Enters a function into the table of programs under its own name.

    Args:
        path: As in `Program`.
        shows: As in `Program`.
        dtype: What it computes in, here as in the reference.
        **options: More fields of `Program`.
    """

    def enter(make: Make) -> Make:
        name = make.__name__
        assert name not in PROGRAMS, name

        def in_its_type(setting: Setting) -> Recipe:
            keras.config.set_floatx(dtype)
            keras.config.set_dtype_policy(dtype)
            return make(setting)

        group, title = path.split("/")
        PROGRAMS[name] = Program(
            name, title, group, in_its_type, path=path, shows=shows, dtype=dtype, **options
        )
        return make

    return enter


def images(
    rows: int, side: int = 12, channels: int = 1, classes: int = 4, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Images of which each class has a bright quarter of its own, in [0, 1], and labels."""
    draws = generator(seed)
    labels = draws.integers(0, classes, rows).astype("int32")
    pixels = draws.uniform(0, 0.5, (rows, side, side, channels))
    half = side // 2
    for row, label in enumerate(labels % 4):
        top, left = half * (label // 2), half * (label % 2)
        pixels[row, top : top + half, left : left + half] += 0.5
    return pixels.astype("float32"), labels


def sentences(rows: int, length: int = 12, words: int = 30, seed: int = 0) -> np.ndarray:
    """Numbers of words, from 1; zeros pad the ends of two rows out of three."""
    draws = generator(seed)
    text = draws.integers(1, words, (rows, length)).astype("int32")
    kept = np.where(np.arange(rows) % 3 == 0, length, draws.integers(3, length, rows))
    return np.where(np.arange(length) < kept[:, None], text, 0).astype("int32")


def table(rows: int, columns: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Numbers in columns, and whether the sum of the first three is large."""
    x = generator(seed).normal(size=(rows, columns)).astype("float32")
    return x, (x[:, :3].sum(axis=1) > 0.8).astype("int32")


@dataclasses.dataclass
class Draws:
    """Random numbers that each replica draws from its own seed.

    One device that stands in for several replicas draws each slice's as that replica would.

    Args:
        setting: Where the program runs.
        seed: As for `keras.random.SeedGenerator`.
    """

    setting: Setting
    seed: int

    def __post_init__(self) -> None:
        self.generator = keras.random.SeedGenerator(self.seed)

    def normal(self, shape: Any) -> Any:
        """Normal numbers; the first dimension is the batch's."""
        return self._draw(shape, keras.random.normal, tf.random.stateless_normal)

    def uniform(self, shape: Any) -> Any:
        """Numbers between 0 and 1; the first dimension is the batch's."""
        return self._draw(shape, keras.random.uniform, tf.random.stateless_uniform)

    def _draw(self, shape: Any, whole: Any, of_slice: Any) -> Any:
        slices = self.setting.slices
        if slices == 1:
            return whole(shape, seed=self.generator)
        seed = self.generator.next()
        parts = []
        for number in range(slices):
            rows = (number + 1) * shape[0] // slices - number * shape[0] // slices
            own = seed + tf.constant([number * 0x9E3779B1, 0], seed.dtype)
            own = tf.cast(tf.math.floormod(own, tf.int32.max - 1), tf.int32)
            parts.append(of_slice((rows, *shape[1:]), seed=own, dtype=keras.config.floatx()))
        return tf.concat(parts, axis=0)
