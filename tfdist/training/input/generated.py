"""Reads batches that Python code makes, one by one: those of generators and of PyDatasets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from typing_extensions import override

from tfdist.errors import ConfigError
from tfdist.keras_internals import data_adapters, dataset_inputs, dataset_of_one, first_batches
from tfdist.training.input.adapters import Batches
from tfdist.training.input.batch import rows_of
from tfdist.training.input.class_weights import with_class_weight


class _GeneratedBatches(Batches):
    """Batches that Python code makes, of which Keras' adapter reads the first two to know more.

    Args:
        adapter: Keras' adapter for the data.
        class_weight: A weight for each class.
        for_replicas: Whether several replicas share each batch.
    """

    def __init__(
        self, adapter: Any, class_weight: dict[int, float] | None, *, for_replicas: bool
    ) -> None:
        super().__init__(adapter, class_weight)
        self._for_replicas = for_replicas

    @property
    @override
    def rows(self) -> int | None:
        return int(rows_of(self._first_batch()))

    @override
    def first(self) -> tf.data.Dataset:
        _ = self.dataset  # With it the adapter knows the types.
        dataset = dataset_of_one(self._first_batch(), self._adapter)
        return with_class_weight(dataset, self._class_weight)

    @override
    def _read(self) -> tf.data.Dataset:
        batches = super()._read()
        if self._for_replicas:
            # It ends with a prefetch of any number of batches. Those of a generator are lost
            # where it is read again, and each worker might lose another number.
            (batches,) = dataset_inputs(batches)
        return batches

    def _first_batch(self) -> Any:
        """Returns the first batch, which was read already."""
        raise NotImplementedError


class GeneratorBatches(_GeneratedBatches):
    """Batches that an iterator gives.

    Args:
        iterator: The iterator.
        class_weight: A weight for each class.
        for_replicas: Whether several replicas share each batch.
    """

    def __init__(
        self, iterator: Iterator[Any], class_weight: dict[int, float] | None, *, for_replicas: bool
    ) -> None:
        batches = (_in_tuple(_standard(each, for_replicas=for_replicas)) for each in iterator)
        adapter = data_adapters.get_data_adapter(batches)
        super().__init__(adapter, class_weight, for_replicas=for_replicas)
        if for_replicas:
            # Keras' adapter would give the first two batches again each time it is read.
            rest = adapter.generator()
            adapter.generator = lambda: rest

    @override
    def _first_batch(self) -> Any:
        return first_batches(self._adapter)[0]


class PyDatasetBatches(_GeneratedBatches):
    """Batches of a `keras.utils.PyDataset`.

    Args:
        data: The PyDataset.
        seed: The order of its batches depends on it and the epoch; None for the data's own order.
        class_weight: A weight for each class.
        for_replicas: Whether several replicas share each batch.
    """

    def __init__(
        self,
        data: keras.utils.PyDataset,
        seed: int | None,
        class_weight: dict[int, float] | None,
        *,
        for_replicas: bool,
    ) -> None:
        if data.num_batches == 0:
            raise ConfigError("data: the PyDataset has no batch; give at least one example")
        self._ordered = _Ordered(data, seed, for_replicas=for_replicas)
        adapter = data_adapters.get_data_adapter(self._ordered)
        super().__init__(adapter, class_weight, for_replicas=for_replicas)
        if for_replicas:
            _ = self.dataset  # Reads the first batches, to fail before anything is trained.

    @property
    @override
    def length(self) -> int | None:
        return self._ordered.inner.num_batches

    @override
    def epoch(self, number: int, first: int) -> tf.data.Dataset:
        dataset = self.dataset  # Read in the data's own order.
        self._ordered.begin(number, first)
        return dataset

    @override
    def _first_batch(self) -> Any:
        _ = self.dataset  # With it the first batch was read.
        return self._ordered.first


class _Ordered(keras.utils.PyDataset):
    """A PyDataset in the order of an epoch, without its first batches.

    Args:
        inner: The user's PyDataset.
        seed: The order depends on it and the epoch; None for the data's own order.
        for_replicas: Whether several replicas share each batch. Then one thread reads: several
            would continue at another place after an epoch that ends before the data does.

    Attributes:
        first: The batch that was read first.
    """

    def __init__(
        self, inner: keras.utils.PyDataset, seed: int | None, *, for_replicas: bool
    ) -> None:
        super().__init__(
            workers=1 if for_replicas else inner.workers,
            use_multiprocessing=inner.use_multiprocessing and not for_replicas,
            max_queue_size=inner.max_queue_size,
        )
        self.inner = inner
        self.first: Any = None
        self._seed = seed
        self._for_replicas = for_replicas
        self._epoch: int | None = None
        self._start = 0
        self._order: list[int] | None = None

    def begin(self, epoch: int, first: int) -> None:
        """Sets the epoch whose order the batches have, and the first one to read."""
        self._epoch, self._start, self._order = epoch, first, None

    def __getitem__(self, index: int) -> Any:
        batch = _standard(self.inner[self._number(index)], for_replicas=self._for_replicas)
        batch = batch if isinstance(batch, dict) else _in_tuple(batch)
        if self.first is None:
            self.first = batch
        return batch

    def _number(self, index: int) -> int:
        """Returns the number of a batch in the data's own order."""
        index += self._start
        if self._seed is None or self._epoch is None:
            return index
        if self._order is None:
            # Not before an epoch has begun: its number of batches may have changed then.
            count = self.inner.num_batches
            if count is None:
                return index
            random = np.random.default_rng((self._seed, self._epoch))
            self._order = random.permutation(count).tolist()
        return self._order[index]

    @property
    @override
    def num_batches(self) -> int | None:
        count = self.inner.num_batches
        return None if count is None else max(0, count - self._start)

    @override
    def on_epoch_begin(self) -> None:
        self.inner.on_epoch_begin()

    @override
    def on_epoch_end(self) -> None:
        self.inner.on_epoch_end()


def _standard(batch: Any, *, for_replicas: bool) -> Any:
    """Returns a batch without lists, which tf.data would take for tensors.

    For several replicas, numbers of 64 bits are converted as Keras converts those of arrays.
    """
    batch = keras.tree.lists_to_tuples(batch)
    return keras.tree.map_structure(_as_floatx, batch) if for_replicas else batch


def _as_floatx(leaf: Any) -> Any:
    if tf.is_tensor(leaf) or np.asarray(leaf).dtype != np.float64:
        return leaf
    return np.asarray(leaf, keras.config.floatx())


def _in_tuple(batch: Any) -> tuple[Any, ...]:
    return batch if isinstance(batch, tuple) else (batch,)
