"""Reads batches of arrays, or hands out which rows make a batch, to be picked where it is used."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.errors import ConfigError

# Arrays of more bytes are not copied to other tasks: gRPC sends no message of 2 GB.
_MOST_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Arrays with a row for each example.

    Attributes:
        tensors: A structure of tensors.
    """

    tensors: Any

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self._leaves[0].shape[0])

    @property
    def are_small(self) -> bool:
        """Whether other tasks may have copies."""
        return sum(leaf.shape.num_elements() * leaf.dtype.size for leaf in self._leaves) < (
            _MOST_BYTES
        )

    @property
    def _leaves(self) -> list[tf.Tensor]:
        return [leaf for leaf in tf.nest.flatten(self.tensors) if leaf is not None]

    def order(
        self, epoch: int, first: int, batch: int, *, shuffle: bool, seed: int
    ) -> tf.data.Dataset:
        """Returns a dataset of the numbers of each batch's rows, from batch `first` on."""
        order = np.arange(self.rows)
        if shuffle:
            order = np.random.default_rng((seed, epoch)).permutation(self.rows)
        return tf.data.Dataset.from_tensor_slices(order[first * batch :]).batch(batch)


def gather(tensors: Any, rows: tf.Tensor) -> Any:
    """Returns some rows of each tensor of a structure; None stays."""
    return tf.nest.map_structure(lambda t: None if t is None else tf.gather(t, rows), tensors)


def pick(held: Any, rows: tf.Tensor) -> Any:
    """Returns a batch: an element, as a dataset has it.

    Args:
        held: The tensors of `Arrays`, and the table of class weights or None.
        rows: The numbers of the batch's rows.
    """
    tensors, weights = held
    parts = gather(tensors, rows)
    if weights is not None:
        parts = weigh_classes(weights, *parts)
    return unpack(parts)


def read_arrays(x: Any, y: Any, sample_weight: Any) -> Arrays:
    """Returns arrays that a user gave.

    Raises:
        ConfigError: They are not arrays with the same number of rows.
    """
    parts: Any = (x,) if y is None else (x, y)
    if sample_weight is not None:
        parts = (x, y, sample_weight)
    parts = tuples(parts)
    parts = tf.nest.map_structure(
        lambda a: a if a is None or tf.is_tensor(a) else np.asarray(a), parts
    )
    arrays = [a for a in tf.nest.flatten(parts) if a is not None]
    if any(isinstance(a, (tf.SparseTensor, tf.RaggedTensor)) for a in arrays):
        raise ConfigError(
            "data: a sparse or ragged tensor is given, whose rows cannot be picked one by one; "
            "give tf.data.Dataset.from_tensor_slices(tensors).batch(n)"
        )
    if any(a.ndim == 0 for a in arrays):
        raise ConfigError(
            "data: a list of numbers or a number is given; allowed: arrays with a row for each "
            "example (numpy.array(...))"
        )
    lengths = {int(a.shape[0]) for a in arrays}
    if len(lengths) != 1:
        raise ConfigError(
            f"data: the arrays have {' and '.join(map(str, sorted(lengths)))} rows; "
            "allowed: the same number in all"
        )

    def tensor(array: Any) -> tf.Tensor | None:
        if array is None:
            return None
        # As in Keras.
        kept = keras.config.floatx() if array.dtype == np.float64 else None
        return tf.convert_to_tensor(array, kept)

    return Arrays(tf.nest.map_structure(tensor, parts))


def tuples(element: Any) -> Any:
    """Replaces lists in a structure by tuples: tf.data would convert lists to tensors."""
    if isinstance(element, dict):
        return {key: tuples(value) for key, value in element.items()}
    if isinstance(element, (list, tuple)):
        return tuple(tuples(value) for value in element)
    return element


def unpack(parts: tuple[Any, ...]) -> Any:
    """Unpacks a dataset's element as Keras does: a tuple's parts are separate arguments."""
    return parts if len(parts) > 1 or isinstance(parts[0], tuple) else parts[0]


def table_of(class_weight: dict[int, float]) -> tf.Tensor:
    """Returns weights of classes as a tensor, float32, by the classes' numbers; 1 for others."""
    table = np.ones(max(class_weight) + 1, np.float32)
    for label, weight in class_weight.items():
        table[label] = weight
    return tf.constant(table)


def weigh_classes(table: tf.Tensor, *parts: Any) -> Any:
    """Returns a batch `(x, y)` with sample weights by class.

    Raises:
        ConfigError: The batch is of another structure, or has sample weights.
    """
    if len(parts) == 3:
        raise ConfigError(
            "class_weight: given beside sample_weight; allowed: one of them (multiply the "
            "class weights into the sample weights)"
        )
    if len(parts) != 2 or not tf.is_tensor(parts[1]):
        raise ConfigError("class_weight: allowed with elements (x, y) of one target only")
    x, y = parts
    labels = y
    if y.shape.rank is not None and y.shape.rank > 1:
        labels = tf.argmax(y, -1) if y.shape[-1] != 1 else tf.squeeze(y, -1)
    labels = tf.cast(tf.round(tf.cast(labels, tf.float32)), tf.int32)
    known = labels < tf.shape(table)[0]
    weights = tf.gather(table, tf.where(known, labels, 0))
    return x, y, tf.where(known, weights, 1.0)
