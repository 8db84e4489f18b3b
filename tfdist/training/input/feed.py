"""Feeds a process its batches, epoch by epoch, in the same epochs as Keras' `EpochIterator`.

On one device an element is a batch. For several replicas it is `(data, rows)`: the part of a global
batch that belongs to this worker, and the number of rows that the part was cut from (the whole
global batch where it is known, else the worker's own). `partition.part` divides them among the
replicas.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.layout import ReplicaLayout
from tfdist.data.iterators import iterator_of, untuned
from tfdist.errors import ConfigError
from tfdist.training.input.adapters import Batches
from tfdist.training.input.arrays import ArrayBatches
from tfdist.training.input.batch import empty_dataset, row_of_zeros, rows_between, rows_of, unpack
from tfdist.training.input.epoch import Epoch, UnevenEpoch

Exchange = Callable[[int], list[int]]

_plainly = tf.autograph.experimental.do_not_convert
# Batches that are made ready while a step computes.
_AHEAD = 2


class Feed:
    """Batches for one device.

    Args:
        batches: The data.
        steps: Steps per epoch if the user fixed them: each epoch then continues where the last
            one stopped.

    Attributes:
        whole: Whether every worker knows the rows of the global batch.
    """

    whole = True
    # Whether a call may ask for several elements where nobody knows how many there are.
    _several_a_call = True
    # Tensors of which the elements are the numbers of rows.
    _resident_arrays: Any = None
    # Exchanges whether a worker has data, where shards end at unknown places.
    _exchange_ends: Exchange | None = None

    def __init__(self, batches: Batches, steps: int | None = None) -> None:
        self._batches = batches
        self._steps = steps
        self._iterator: Any = None
        self._length: int | None = None  # Of one reading of the data.
        self._endless = False
        self._seen = 0  # Elements of that reading.
        self._begun = False
        self._resumed: tuple[int, int] | None = None
        self._rows: int | None = None

    @property
    def rows(self) -> int:
        """Rows of the first batch."""
        if self._rows is None:
            self._rows = self._batches.rows
        if self._rows is None:
            counts = [int(rows_of(e)) for e in untuned(self._batches.first().take(1))]
            self._rows = sum(counts)
        return self._rows

    @property
    def element_spec(self) -> Any:
        """The structure, shapes and types of the batches."""
        return self._batches.element_spec

    def end_epoch(self) -> None:
        """Ends an epoch."""
        if self._steps is None and self._is_at_end():
            # Keras makes an iterator here that it does not use, and a dataset that reshuffles
            # takes another order each time.
            self._batches.read_again(1)
        self._batches.end_epoch()

    def restart(self) -> None:
        """Makes the next epoch begin at the beginning of the data."""
        self._iterator = self._resumed = None
        self._batches.end_epoch()

    def resume(self, first_epoch: int, epoch: int, step: int) -> None:
        """Moves the data to the position of an earlier run, before `epoch` is called.

        Args:
            first_epoch: The first epoch of that run.
            epoch: The epoch in which it stopped.
            step: The number of elements of that epoch that it had taken.
        """
        length = self._batches.length
        began, seen, readings = first_epoch, 0, 0
        for number in range(first_epoch, epoch):
            self._batches.begin_epoch()
            self._batches.end_epoch()
            if self._steps is None:
                readings += 1 if length is None else 2
                continue
            seen += self._steps if length is None else min(self._steps, length - seen)
            if length is not None and seen >= length:
                began, seen, readings = number + 1, 0, readings + 1
        self._batches.pass_over(readings)
        if self._steps is not None:
            self._resumed = began, seen + step

    def epoch(self, number: int, exchange: Exchange | None = None, first: int = 0) -> Epoch:
        """Starts epoch `number`.

        Args:
            number: From 0; with a fixed number of steps the data continues where it was.
            exchange: Returns every worker's value of a number, for shards of unequal length.
            first: The element to start at; `steps` of the epoch counts those before it too.
        """
        if self._steps is None or self._iterator is None or self._is_at_end():
            self._start(number, first, exchange)
        else:
            self._batches.begin_epoch()

        may_be_empty, self._begun = self._begun, True

        def ran_out(taken: int) -> None:
            self._iterator = None
            if self._steps is not None or (may_be_empty and not taken):
                self._warn(number, taken)

        steps, limit = self._bounds(number, first)
        epoch = Epoch(self._iterator, steps, limit=limit, ran_out=ran_out)
        if self._exchange_ends is not None:
            epoch = UnevenEpoch(self._iterator, self._exchange_ends)
        epoch.several = self._several_a_call
        epoch.resident_arrays = self._resident_arrays
        epoch.may_be_empty = may_be_empty
        return epoch

    def _is_at_end(self) -> bool:
        return self._length is not None and self._seen >= self._length

    def _start(self, number: int, first: int, exchange: Exchange | None) -> None:
        """Starts to read the data."""
        (number, self._seen), self._resumed = self._resumed or (number, first), None
        dataset = self._elements(number, self._seen)
        self._endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
        self._batches.begin_epoch()
        self._length = self._batches.length
        self._iterator = iterator_of(self._prepared(dataset, exchange))

    def _bounds(self, number: int, first: int) -> tuple[int | None, int | None]:
        """Returns the number of an epoch's steps, or the largest it may be; None if unknown."""
        if self._endless and self._steps is not None:
            # All of them are there, so several may be taken in a call.
            return self._steps, None
        if self._length is None:
            return None, None if self._steps is None else self._steps - first
        steps = first + self._length - self._seen
        if self._steps is not None:
            if steps < self._steps:
                self._warn(number, steps)
            steps = min(steps, self._steps)
        self._seen += steps - first
        return steps, None

    def _warn(self, number: int, taken: int) -> None:
        of = "" if self._steps is None else f" of the {self._steps}"
        warnings.warn(
            "Your input ran out of data; interrupting training. It ended after "
            f"{taken}{of} steps of epoch {number + 1}; the next epoch starts it again. Make sure "
            "that your dataset or generator can generate at least `steps_per_epoch * epochs` "
            "batches. You may need to use the `.repeat()` function when building your dataset.",
            stacklevel=2,
        )

    # What several replicas do in another way:

    def _elements(self, number: int, first: int) -> tf.data.Dataset:
        """Returns the elements of an epoch, from one of them on."""
        return self._batches.epoch(number, first)

    def _prepared(self, dataset: tf.data.Dataset, exchange: Exchange | None) -> tf.data.Dataset:
        """Returns the elements to iterate over."""
        del exchange
        return dataset


class ShardedFeed(Feed):
    """This worker's parts of global batches, for several replicas.

    Args:
        batches: The data.
        steps: Steps per epoch if the user fixed them.
        layout: The replicas this process holds.
        whole: Whether the batches are global batches, of which this worker takes its part; else
            they are its own.
        hands_out_rows: Whether elements of arrays are the numbers of their rows, to be picked
            from the epoch's `resident_arrays` where they are used.

    Attributes:
        first_batch: What `sample` returned, until somebody takes it away.
    """

    _several_a_call = False

    def __init__(
        self,
        batches: Batches,
        steps: int | None = None,
        *,
        layout: ReplicaLayout,
        whole: bool = True,
        hands_out_rows: bool = False,
    ) -> None:
        super().__init__(batches, steps)
        self.whole = whole
        self.first_batch: Any = None
        self._layout = layout
        self._arrays: ArrayBatches | None = None
        if hands_out_rows and isinstance(batches, ArrayBatches) and batches.are_small:
            self._arrays, self._resident_arrays = batches, batches.tensors

    def sample(self) -> Any:
        """Returns the first batch, uncut, to build a model with: one row of it at least.

        Raises:
            ConfigError: The data is empty.
        """
        # This worker's part of a small batch may have no rows.
        batches = self._batches.first().map(_plainly(_data))
        self._rows = 0
        for data in untuned(batches.take(1)):
            self._rows = int(rows_of(data))
            self.first_batch = data
            return data
        if self.whole:
            raise ConfigError("data: it has no batch; give at least one example")
        # This worker's shard is empty; the others' may not be.
        return row_of_zeros(batches.element_spec)

    @override
    def _elements(self, number: int, first: int) -> tf.data.Dataset:
        if self._arrays is not None:
            rows = self._arrays.rows_of_epoch(number, first)
            return rows.map(lambda rows: (rows, rows_of(rows)))
        return self._batches.epoch(number, first).map(_plainly(self._cut))

    def _cut(self, *parts: Any) -> tuple[Any, tf.Tensor]:
        """Returns this worker's part of a batch, and the number of rows it was cut from."""
        data = _data(*parts)
        rows = rows_of(data)
        if self._layout.workers > 1 and self.whole:
            data = rows_between(data, *self._layout.own_rows(rows))
        return data, rows

    @override
    def _prepared(self, dataset: tf.data.Dataset, exchange: Exchange | None) -> tf.data.Dataset:
        self._exchange_ends = None
        has_own_shard = not self.whole and self._layout.workers > 1
        if self._steps is None and exchange is not None and has_own_shard:
            dataset = self._evened(dataset, exchange)
        if self._steps is None and self._endless:
            raise ConfigError(
                "data: it repeats forever; give steps_per_epoch (or steps) to say where it ends"
            )
        return dataset.prefetch(_AHEAD)

    def _evened(self, dataset: tf.data.Dataset, exchange: Exchange) -> tf.data.Dataset:
        """Appends elements without rows to a shard that is shorter than another worker's."""
        lengths = exchange(-1 if self._length is None else self._length)
        empty = empty_dataset(dataset.element_spec).repeat()
        if self._length is None or min(lengths) < 0:
            # The end of each shard shows only when it is reached; until the last one is, the
            # workers continue together, some with nothing.
            self._length, self._exchange_ends = None, exchange
            return dataset.map(lambda *e: (*e, True)).concatenate(empty.map(lambda *e: (*e, False)))
        if self._length < max(lengths):
            self._length = max(lengths)
            dataset = dataset.concatenate(empty)
        return dataset


def _data(*parts: Any) -> Any:
    """Returns a dataset's element as a step takes it."""

    def of_leaf(leaf: Any) -> Any:
        # Keras' adapters have an `Optional` where there is None.
        return None if isinstance(leaf, tf.experimental.Optional) else leaf

    return tf.nest.map_structure(of_leaf, unpack(parts))
