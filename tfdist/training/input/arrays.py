"""Reads batches of arrays, or hands out which rows make a batch, to be picked where it is used."""

from __future__ import annotations

import numbers
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from typing_extensions import override

from tfdist.errors import ConfigError
from tfdist.keras_internals import ArrayDataAdapter, array_parts, array_slicing
from tfdist.training.input.adapters import Batches
from tfdist.training.input.batch import unpack

# Arrays of more bytes are not copied to other tasks: gRPC sends no message of 2 GB.
_MOST_BYTES = 1 << 30


class ArrayBatches(Batches):
    """Batches of arrays with a row for each example.

    Args:
        adapter: Keras' adapter for the arrays.
        shuffle: Whether to shuffle them in each epoch; "batch" does so within their batches.
        seed: The order depends on it and the epoch.
        of_any_size: Whether a graph knows the number of rows of no batch; else it does as in
            Keras, where all batches have the same.

    Attributes:
        tensors: The arrays, as a structure of tensors.
    """

    def __init__(
        self, adapter: ArrayDataAdapter, shuffle: bool | str, seed: int, *, of_any_size: bool
    ) -> None:
        super().__init__(adapter)
        arrays, self._count, self._batch = array_parts(adapter)
        self._shuffle = shuffle
        self._seed = seed
        self._of_any_size = of_any_size
        arrays = array_slicing.convert_to_sliceable(arrays, target_backend="tensorflow")
        with tf.device("CPU:0"):
            self.tensors = keras.tree.map_structure(_tensor, keras.tree.lists_to_tuples(arrays))

    @property
    @override
    def element_spec(self) -> Any:
        return self.epoch(0, 0).element_spec

    @property
    @override
    def rows(self) -> int | None:
        return min(self._batch, self._count)

    @property
    def are_small(self) -> bool:
        """Whether other tasks may have copies."""
        leaves = [leaf for leaf in tf.nest.flatten(self.tensors) if leaf is not None]
        return sum(leaf.shape.num_elements() * leaf.dtype.size for leaf in leaves) < _MOST_BYTES

    @override
    def epoch(self, number: int, first: int) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensors(self.tensors).repeat()
        dataset = tf.data.Dataset.zip((self.rows_of_epoch(number, first), data))
        dataset = dataset.map(_rows, num_parallel_calls=tf.data.AUTOTUNE)
        options = tf.data.Options()
        options.experimental_optimization.apply_default_optimizations = False
        return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)

    def rows_of_epoch(self, number: int, first: int) -> tf.data.Dataset:
        """Returns a dataset of the numbers of each batch's rows, from batch `first` on."""
        order = self._order(number)
        whole = max(self._count // self._batch, first)
        # As in Keras the batch size is static if the last batch is full.
        rows = order[first * self._batch : whole * self._batch].reshape(-1, self._batch)
        indices = tf.data.Dataset.from_tensor_slices(rows)
        rest = order[whole * self._batch :]
        if len(rest) or self._of_any_size:
            indices = indices.concatenate(tf.data.Dataset.from_tensors(rest).take(len(rest)))
        return indices

    def _order(self, epoch: int) -> np.ndarray:
        random = np.random.default_rng((self._seed, epoch))
        order = np.arange(self._count)
        if not self._count or not self._shuffle:
            return order
        if self._shuffle == "batch":
            starts = range(0, self._count, self._batch)
            return np.concatenate(
                [random.permutation(order[at : at + self._batch]) for at in starts]
            )
        return random.permutation(self._count)


def pick(tensors: Any, rows: tf.Tensor) -> Any:
    """Returns the batch of some rows of `ArrayBatches.tensors`."""
    batch = _rows(rows, tensors)
    return unpack(batch if isinstance(batch, tuple) else (batch,))


def check_arrays(x: Any, y: Any, sample_weight: Any, *, for_replicas: bool) -> None:
    """Rejects arrays without rows, or with other numbers of rows.

    Args:
        x: Arrays, or other data, which is accepted.
        y: Targets, or None.
        sample_weight: Weights, or None.
        for_replicas: Whether several replicas share each batch.

    Raises:
        ConfigError: They are not arrays with the same number of rows.
    """
    leaves = [leaf for leaf in keras.tree.flatten((x, y, sample_weight)) if leaf is not None]
    shapes = [getattr(leaf, "shape", None) for leaf in leaves]
    if any(isinstance(leaf, numbers.Number) for leaf in leaves) or () in shapes:
        raise ConfigError(
            "data: a list of numbers or a number is given; allowed: arrays with a row for each "
            "example (numpy.array(...))"
        )
    if for_replicas and any(isinstance(x, (tf.SparseTensor, tf.RaggedTensor)) for x in leaves):
        raise ConfigError(
            "data: a sparse or ragged tensor is given, whose rows cannot be picked one by one; "
            "give tf.data.Dataset.from_tensor_slices(tensors).batch(n)"
        )
    lengths = {int(shape[0]) for shape in shapes if shape is not None and shape[0] is not None}
    if len(lengths) > 1:
        raise ConfigError(
            f"data: the arrays have {' and '.join(map(str, sorted(lengths)))} rows; "
            "allowed: the same number in all"
        )


def _tensor(array: Any) -> Any:
    return array if array is None or tf.is_tensor(array) else tf.convert_to_tensor(array)


def _rows(indices: Any, data: Any) -> Any:
    """Returns the rows `indices` of every array in `data`, as Keras' adapter does."""

    def of(x: Any) -> Any:
        if isinstance(x, array_slicing.TensorflowSparseWrapper):
            return array_slicing.slice_tensorflow_sparse_wrapper(x, indices)
        if isinstance(x, (list, tuple, dict)):
            return None  # Its parts are visited next.
        return tf.gather(x, indices, axis=0) if tf.is_tensor(x) else x

    return keras.tree.traverse(of, data)
