"""Feeds a process its batches, epoch by epoch.

A `Feed` gives an iterator over elements `(data, rows)`: the part of a global batch that belongs
to this worker, and the number of rows that the part was cut from (the whole global batch where
it is known, else the worker's own). `partition.part` divides them among the replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import tensorflow as tf

from tfdist.collectives.layout import ReplicaLayout
from tfdist.data.iterators import iterator_of, untuned
from tfdist.errors import ConfigError
from tfdist.runtime.log import LOGGER
from tfdist.training.input.batch import empty_dataset, row_of_zeros

# Batches that are made ready while a step computes.
_AHEAD = 2


@dataclass
class Epoch:
    """One pass over the data: an iterator, and the number of its elements, None if unknown."""

    iterator: Any
    steps: int | None

    # Whether a call may ask for several elements where nobody knows how many there are; its end
    # is then named as Keras does, by the last step there might have been.
    several: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._next: Any = None
        self.taken = 0  # How many elements were taken one by one.
        # Arrays of which the elements are the numbers of rows; None where elements are data.
        self.resident_arrays: Any = None
        self.may_be_empty = False

    def peek(self) -> bool:
        """Fetches one element ahead; returns whether there was one. For unknown `steps`."""
        if self._next is None:
            optional = self.iterator.get_next_as_optional()
            if not bool(optional.has_value()):
                return False
            self._next = optional.get_value()
        return True

    def pop(self) -> Any:
        """Returns the element fetched ahead, or else the next one."""
        element, self._next = self._next, None
        self.taken += 1
        return next(self.iterator) if element is None else element


class AnyFeed(Protocol):
    """What a `Trainer` asks of data, epoch by epoch."""

    @property
    def rows(self) -> int:
        """Rows of the first batch."""

    @property
    def whole(self) -> bool:
        """Whether `rows` counts the global batch."""

    def restart(self) -> None:
        """Makes the next epoch begin at the beginning of the data."""

    def resume(self, first_epoch: int, epoch: int, step: int) -> None:
        """Takes the data to where an earlier run had come."""

    @property
    def element_spec(self) -> Any:
        """The structure, shapes and types of the elements."""

    @property
    def end_epoch(self) -> Callable[[], None]:
        """What is called after each epoch."""

    def epoch(
        self, number: int, exchange: Callable[[int], list[int]] | None = None, first: int = 0
    ) -> Epoch:
        """Starts epoch `number`, at element `first`."""


class Feed:
    """Batches for this process.

    Args:
        make: Returns the dataset of elements `(data, rows)` of an epoch, given the number of the
            epoch and the number of first elements to skip.
        whole: Whether `rows` counts the global batch, so that every worker knows it.
        layout: The replicas this process holds.
        steps: Steps per epoch if the user fixed them: the data then continues over epochs.
        sample: Returns a dataset whose first element `sample` takes, if not the data itself.
        pass_over: Skips a number of epochs, where the order of an epoch depends on the number of
            earlier reads.
        begin_epoch: Called before each epoch.
        end_epoch: Called after each epoch.
        on_restart: Called where the data begins anew.
        ends: Whether the data can be read once only, so that a later epoch may have nothing.
        held: What `arrays.pick` takes if the elements are the numbers of rows, else None.

    Attributes:
        rows: Rows of the first element, once `sample` was called: the global batch if `whole`.
        first_batch: What `sample` gave, until somebody takes it away.
    """

    def __init__(
        self,
        make: Callable[[int, int], tf.data.Dataset],
        *,
        whole: bool,
        layout: ReplicaLayout,
        steps: int | None = None,
        sample: Callable[[], tf.data.Dataset] | None = None,
        pass_over: Callable[[int], None] = lambda epochs: None,
        begin_epoch: Callable[[], None] = lambda: None,
        end_epoch: Callable[[], None] = lambda: None,
        on_restart: Callable[[], None] = lambda: None,
        ends: bool = False,
        held: Any = None,
    ) -> None:
        self._make = make
        self._make_sample = sample or (lambda: make(0, 0))
        self._pass_over = pass_over
        self._begin_epoch = begin_epoch
        self.end_epoch = end_epoch
        self._on_restart = on_restart
        self._ends = ends
        self._held = held
        self._begun = False
        self.rows = 0
        self.first_batch: Any = None
        self.whole = whole
        self.layout = layout
        self._steps = steps
        self._running: Epoch | None = None
        self._left: int | None = None
        self._first: tf.data.Dataset | None = None

    def sample(self) -> Any:
        """Returns the first rows of the data (one at least), to build a model with.

        Raises:
            ConfigError: The data is empty.
        """
        self._first = self._make_sample()
        for data, rows in untuned(self._first.take(1)):
            self.rows = int(rows)
            self.first_batch = data
            return data
        if self.whole:
            raise ConfigError("data: it has no batch; give at least one example")
        # This worker's shard is empty; the others' may not be.
        return row_of_zeros(self._first.element_spec[0])

    @property
    def element_spec(self) -> Any:
        """The structure, shapes and types of the elements."""
        return (self._first or self._make(0, 0)).element_spec

    def restart(self) -> None:
        """Makes the next epoch begin at the beginning of the data."""
        self._running = None
        self._on_restart()

    def resume(self, first_epoch: int, epoch: int, step: int) -> None:
        """Moves the data to the position of an earlier run, before `epoch` is called.

        Args:
            first_epoch: The epoch that run began with.
            epoch: The epoch it had reached.
            step: The number of elements of that epoch that it had taken.
        """
        if self._steps is None:
            self._pass_over(epoch - first_epoch)
        else:
            self._start_continued(first_epoch, (epoch - first_epoch) * self._steps + step)

    def epoch(
        self,
        number: int,
        exchange: Callable[[int], list[int]] | None = None,
        first: int = 0,
    ) -> Epoch:
        """Starts epoch `number`.

        Args:
            number: From 0; with a fixed number of steps the data continues where it was.
            exchange: Returns every worker's value of a number, for shards of unequal length.
            first: The element to start at; `steps` of the epoch counts those before it too.
        """
        self._begin_epoch()
        begun = self._begin(number, exchange, first)
        begun.resident_arrays = self._held
        return begun

    def _begin(self, number: int, exchange: Callable[[int], list[int]] | None, first: int) -> Epoch:
        if self._steps is not None:
            return self._continued(number, first)
        dataset = self._make(number, first)
        steps = _cardinality(dataset)
        if steps is not None and steps >= 0:
            steps += first
        if exchange is not None and not self.whole and self.layout.workers > 1:
            lengths = exchange(-1 if steps is None else steps)
            if min(lengths) < 0:
                steps = None
            elif steps is not None and steps < max(lengths):
                dataset = dataset.concatenate(empty_dataset(dataset.element_spec).repeat())
                steps = max(lengths)
            if steps is None:
                # The end of each shard shows only when it is reached; until the last one is,
                # the workers go on together, some with nothing.
                dataset = dataset.map(lambda *e: (*e, True)).concatenate(
                    empty_dataset(dataset.element_spec).map(lambda *e: (*e, False)).repeat()
                )
                return UnevenEpoch(iterator_of(dataset), None, exchange)
        if steps is not None and steps < 0:
            raise ConfigError(
                "data: it repeats forever; give steps_per_epoch (or steps) to say where it ends"
            )
        begun = Epoch(iterator_of(dataset.prefetch(_AHEAD)), steps)
        begun.may_be_empty = self._ends and self._begun
        self._begun = True
        return begun

    def _start_continued(self, number: int, first: int) -> None:
        dataset = self._make(number, first)
        length = _cardinality(dataset)
        self._left = None if length is None or length < 0 else length
        self._running = Epoch(
            iterator_of(dataset.prefetch(_AHEAD)),
            None if length is None else 0,
        )

    def _continued(self, number: int, first: int) -> Epoch:
        assert self._steps is not None
        if self._running is None or self._left == 0:
            self._start_continued(number, 0)
        assert self._running is not None
        wanted = self._steps - first
        if self._running.steps is None:
            limited = _Limited(self._running, wanted, self._ended)
            limited.may_be_empty = self._ends and self._begun
            self._begun = True
            return limited
        steps = wanted if self._left is None else min(wanted, self._left)
        if self._left is not None:
            self._left -= steps
        epoch = Epoch(self._running.iterator, first + steps)
        if steps < wanted:
            self._ended(first + steps)
        return epoch

    def _ended(self, steps: int) -> None:
        """The data came to its end in the midst of an epoch; as in Keras, it begins again."""
        self._running = None
        LOGGER.warning(
            "data: it ended after %d of the %d steps of an epoch; the next epoch reads it from its "
            "beginning (give fewer steps_per_epoch, or data that repeats)",
            *(steps, self._steps),
        )


class _Limited(Epoch):
    """A limited number of elements of an epoch of unknown length, which the next one continues."""

    def __init__(self, epoch: Epoch, limit: int, on_end: Callable[[int], None]) -> None:
        super().__init__(epoch.iterator, None)
        self._epoch = epoch
        self._limit = limit
        self._on_end = on_end

    def peek(self) -> bool:
        if self._limit > 0 and not self._epoch.peek():
            self._limit = 0
            self._on_end(self.taken)
        return self._limit > 0

    def pop(self) -> Any:
        self._limit -= 1
        self.taken += 1
        return self._epoch.pop()


class UnevenEpoch(Epoch):
    """Shards of unknown lengths: the workers exchange before each step whether any has data."""

    def __init__(
        self, iterator: Any, steps: int | None, exchange: Callable[[int], list[int]]
    ) -> None:
        super().__init__(iterator, steps)
        self._exchange = exchange

    def peek(self) -> bool:
        """Fetches one element ahead; returns whether any worker had one."""
        if self._next is None:
            *element, has_data = next(self.iterator)
            if not any(self._exchange(int(has_data))):
                return False
            self._next = tuple(element)
        return True


def _cardinality(dataset: tf.data.Dataset) -> int | None:
    """Returns the dataset's length; None if unknown, -1 if infinite."""
    length = int(dataset.cardinality())
    if length == tf.data.UNKNOWN_CARDINALITY:
        return None
    return -1 if length == tf.data.INFINITE_CARDINALITY else length
