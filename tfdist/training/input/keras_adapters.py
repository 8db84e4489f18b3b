"""Reads users' data through Keras' own adapters, for one device.

Only the order of shuffled data is tfdist's: it depends on a seed and the epoch alone, so that
training can resume in the same order, and several replicas see the same batches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.collectives.layout import ReplicaLayout
from tfdist.errors import ConfigError
from tfdist.keras_internals import (
    ArrayDataAdapter,
    array_parts,
    array_slicing,
    can_convert_arrays,
    data_adapters,
    first_batches,
    reads_dataset,
)
from tfdist.training.input.adapters import (
    function_batches,
    order_of_batches,
    with_class_weight,
)
from tfdist.training.input.batch import rows_of
from tfdist.training.input.keras_feed import Batches, KerasFeed


def make_keras_feed(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    shuffle: bool | str = False,
    seed: int = 0,
    class_weight: dict[int, float] | None = None,
    steps: int | None = None,
    steps_a_call: int = 1,
) -> KerasFeed:
    """Makes the feed of any data that Keras' `fit` accepts, or a function of `InputContext`.

    Args:
        x: Any data that `make_feed` or Keras accepts.
        y: Targets, with arrays only.
        sample_weight: Weights, with arrays only.
        batch_size: Rows per batch, with arrays only.
        shuffle: Whether to shuffle arrays, and the batches of a PyDataset, in each epoch; "batch"
            shuffles arrays within their batches.
        seed: The order depends on it and the epoch.
        class_weight: A weight for each class.
        steps: Steps per epoch, or None for all of the data.
        steps_a_call: The number of steps that Keras makes per call; only the end of the data makes
            a call shorter.

    Raises:
        ConfigError: Keras does not accept the data.
    """
    most = keras.config.max_steps_per_epoch()
    if most:
        steps = min(steps or most, most)
    whole_calls = -(-steps // steps_a_call) * steps_a_call if steps else None
    with _one_line():
        if _is_function(x):
            return KerasFeed(_of_function(x, class_weight), whole_calls)
        if can_convert_arrays((x, y, sample_weight)):
            adapter = ArrayDataAdapter(
                x, y, sample_weight, batch_size=batch_size, steps=steps, class_weight=class_weight
            )
            return KerasFeed(_of_arrays(adapter, shuffle, seed), whole_calls)
        later = None
        if isinstance(x, Iterator) and not data_adapters.is_tf_dataset(x):
            x = map(_as_tuple, x)
            x = (element for element in x)  # Keras knows generators only.
            later, class_weight = class_weight, None
        order = None
        if isinstance(x, keras.utils.PyDataset):
            order = x = _Ordered(x, seed if shuffle else None)
        adapter = data_adapters.get_data_adapter(
            x, y, sample_weight, steps_per_epoch=steps, class_weight=class_weight
        )
        return KerasFeed(_of_adapter(adapter, order, later), whole_calls)


def split_validation(x: Any, y: Any, sample_weight: Any, fraction: float) -> tuple[Any, Any]:
    """Splits data as Keras does: the last rows are for validation.

    Raises:
        ConfigError: Keras cannot split it.
    """
    with _one_line():
        return array_slicing.train_validation_split(
            (x, y, sample_weight), validation_split=fraction
        )


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Converts the errors of Keras' adapters into a ConfigError of one line."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"data: {' '.join(str(error).split())}") from error


def _is_function(x: Any) -> bool:
    return (
        callable(x)
        and not hasattr(x, "__array__")
        and not isinstance(x, (tf.data.Dataset, keras.utils.PyDataset, Iterator))
    )


def _as_tuple(element: Any) -> Any:
    return tuple(element) if isinstance(element, list) else element


def _of_function(function: Any, class_weight: dict[int, float] | None) -> Batches:
    batches = function_batches(function, ReplicaLayout(), class_weight)
    latest: list[int | None] = [None]

    def make(epoch: int, first: int) -> tf.data.Dataset:
        dataset = batches(epoch, first)
        left = int(dataset.cardinality())
        latest[0] = None if left < 0 else left + first
        return dataset

    def length() -> int | None:
        if latest[0] is None:
            make(0, 0)
        return latest[0]

    return Batches(make, length)


def _of_arrays(adapter: ArrayDataAdapter, shuffle: bool | str, seed: int) -> Batches:
    arrays, count, batch = array_parts(adapter)
    tensors = array_slicing.convert_to_sliceable(arrays, target_backend="tensorflow")
    tensors = keras.tree.lists_to_tuples(tensors)

    def order_of(epoch: int) -> np.ndarray:
        random = np.random.default_rng((seed, epoch))
        order = np.arange(count)
        if shuffle == "batch":
            starts = range(0, count, batch)
            return np.concatenate([random.permutation(order[at : at + batch]) for at in starts])
        return random.permutation(count) if shuffle else order

    def make(epoch: int, first: int) -> tf.data.Dataset:
        order = order_of(epoch) if count else np.arange(0)
        whole = max(count // batch, first)
        # As in Keras the batch size is static if the last batch is full.
        rows = order[first * batch : whole * batch].reshape(-1, batch)
        indices = tf.data.Dataset.from_tensor_slices(rows)
        if count % batch:
            rest = tf.data.Dataset.from_tensors(order[whole * batch :])
            indices = indices.concatenate(rest)
        data = tf.data.Dataset.from_tensors(tensors).repeat()
        dataset = tf.data.Dataset.zip((indices, data))
        dataset = dataset.map(_rows, num_parallel_calls=tf.data.AUTOTUNE)
        options = tf.data.Options()
        options.experimental_optimization.apply_default_optimizations = False
        return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)

    return Batches(make, lambda: adapter.num_batches, rows=lambda: min(batch, count))


def _rows(indices: Any, data: Any) -> Any:
    """Returns the rows `indices` of every array in `data`, as Keras' adapter does."""

    def of(x: Any) -> Any:
        if isinstance(x, array_slicing.TensorflowSparseWrapper):
            return array_slicing.slice_tensorflow_sparse_wrapper(x, indices)
        if isinstance(x, (list, tuple, dict)):
            return None  # Its parts are visited next.
        return tf.gather(x, indices, axis=0) if tf.is_tensor(x) else x

    return keras.tree.traverse(of, data)


def _of_adapter(
    adapter: Any, order: _Ordered | None, class_weight: dict[int, float] | None
) -> Batches:
    made: list[tf.data.Dataset] = []

    def make(epoch: int, first: int) -> tf.data.Dataset:
        if not made:
            made.append(with_class_weight(adapter.get_tf_dataset(), class_weight))
        if order is not None:
            order.begin(epoch, first)
            return made[0]
        return made[0].skip(first) if first else made[0]

    length: Callable[[], int | None] = lambda: adapter.num_batches  # noqa: E731
    if order is not None:
        length = lambda: order.inner.num_batches  # noqa: E731

    def rows() -> int | None:
        if order is not None:
            return int(rows_of(order.inner[0]))
        for batch in first_batches(adapter):
            return int(rows_of(batch))
        shape = tf.nest.flatten(make(0, 0).element_spec)[0].shape
        return shape[0] if shape.rank else None

    return Batches(
        make,
        length,
        rows=rows,
        begin_epoch=adapter.on_epoch_begin,
        end_epoch=adapter.on_epoch_end,
        counts_reads=reads_dataset(adapter),
    )


class _Ordered(keras.utils.PyDataset):
    """A PyDataset in the order of an epoch, without its first batches.

    Args:
        inner: The user's PyDataset.
        seed: The order depends on it and the epoch; None for the data's own order.
    """

    def __init__(self, inner: keras.utils.PyDataset, seed: int | None) -> None:
        super().__init__(
            workers=inner.workers,
            use_multiprocessing=inner.use_multiprocessing,
            max_queue_size=inner.max_queue_size,
        )
        self.inner = inner
        self._seed = seed
        self._first = 0
        self._order: Any = None

    def begin(self, epoch: int, first: int) -> None:
        """Sets the order of the batches for an epoch, and the first one to read."""
        self._first = first
        self._order = order_of_batches(self.inner.num_batches, self._seed, epoch)

    def __getitem__(self, index: int) -> Any:
        index += self._first
        return self.inner[index if self._order is None else self._order[index]]

    @property
    def num_batches(self) -> int | None:
        """The number of batches left in the epoch; None for infinitely many."""
        count = self.inner.num_batches
        return None if count is None else max(0, count - self._first)

    def on_epoch_begin(self) -> None:
        """Calls the user's method."""
        self.inner.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Calls the user's method."""
        self.inner.on_epoch_end()
