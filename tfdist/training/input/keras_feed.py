"""Feeds one device its batches, in the same epochs as Keras' own `EpochIterator`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.data.iterators import iterator_of
from tfdist.training.input.batch import rows_of
from tfdist.training.input.feed import Epoch


def _nothing() -> None:
    """Does nothing."""


@dataclass(frozen=True)
class Batches:
    """Data read by one of Keras' adapters.

    Attributes:
        make: Returns the dataset of an epoch, from an element number on.
        length: Returns the number of elements of an epoch; None if unknown.
        rows: Returns the number of rows of a batch; None if a batch must be read to know.
        begin_epoch: Called before each epoch.
        end_epoch: Called after each epoch.
        counts_reads: Whether the content of an epoch depends on how often the data was read.
    """

    make: Callable[[int, int], tf.data.Dataset]
    length: Callable[[], int | None]
    rows: Callable[[], int | None] = lambda: None
    begin_epoch: Callable[[], None] = _nothing
    end_epoch: Callable[[], None] = _nothing
    counts_reads: bool = False


class KerasEpoch(Epoch):
    """A pass over data whose length may be unknown.

    Args:
        iterator: Iterates over the elements.
        steps: The number of elements, None if unknown.
        limit: The largest number of elements to take where `steps` is unknown; None for all.
        ran_out: Called if the elements end before the limit.
        ahead: The first element, as an optional, if it was taken from the iterator already.
        may_be_empty: Whether it may have no elements.
    """

    several = True

    def __init__(
        self,
        iterator: Any,
        steps: int | None,
        limit: int | None,
        ran_out: Callable[[], None],
        *,
        ahead: Any,
        may_be_empty: bool,
    ) -> None:
        super().__init__(iterator, steps)
        self._next = ahead
        self.may_be_empty = may_be_empty
        self._limit = limit
        self._ran_out = ran_out

    def peek(self) -> bool:
        """Fetches one element ahead; returns whether there was one."""
        if self._limit is not None and self.taken >= self._limit:
            return False
        if self._next is None:
            optional = self.iterator.get_next_as_optional()
            if not bool(optional.has_value()):
                self._ran_out()
                return False
            self._next = optional
        return True

    @property
    def is_ahead(self) -> bool:
        """Returns whether an element was fetched ahead."""
        return self._next is not None

    def pop_optional(self) -> Any:
        """Returns the element fetched ahead, as an optional, which keeps the dataset's shapes."""
        optional, self._next = self._next, None
        self.taken += 1
        return optional

    def pop(self) -> Any:
        """Returns the element fetched ahead, or else the next one."""
        if self._next is not None:
            return self.pop_optional().get_value()
        self.taken += 1
        return next(self.iterator)


class KerasFeed:
    """Batches for one device.

    Args:
        batches: The data.
        steps: Steps per epoch if the user fixed them: each epoch then continues where the last
            one stopped.

    Attributes:
        whole: True: every batch is a global batch.
    """

    whole = True

    def __init__(self, batches: Batches, steps: int | None) -> None:
        self._batches = batches
        self._steps = steps
        self._iterator: Any = None
        self._length: int | None = None
        self._endless = False
        self._seen = 0
        self._any = False
        self._ahead: Any = None  # An iterator from which a batch was read to count its rows.
        self._first: Any = None
        self._rows: int | None = None

    @property
    def rows(self) -> int:
        """Rows of the first batch."""
        if self._rows is None:
            self._rows = self._batches.rows()
        if self._rows is None:
            # A further iterator would change the order of a dataset that reshuffles, so the first
            # epoch continues with this one.
            self._ahead = iterator_of(self._make(0, 0))
            self._first = self._ahead.get_next_as_optional()
            there = bool(self._first.has_value())
            self._rows = int(rows_of(self._first.get_value())) if there else 0
        return self._rows

    @property
    def element_spec(self) -> Any:
        """The structure, shapes and types of the elements."""
        return self._batches.make(0, 0).element_spec

    def end_epoch(self) -> None:
        """Ends an epoch; the next one starts the data again if it is at its end."""
        if self._length is not None and self._seen >= self._length:
            if self._batches.counts_reads and self._steps is None:
                # Keras makes an iterator here that it does not use, and a dataset that
                # reshuffles takes another order each time.
                iterator_of(self._batches.make(0, 0))
            self._iterator = None
        self._batches.end_epoch()

    def restart(self) -> None:
        """Makes the next epoch begin at the beginning of the data."""
        self._iterator = None
        self._batches.end_epoch()

    def resume(self, first_epoch: int, epoch: int, step: int) -> None:
        """Moves the data to the position of an earlier run, before `epoch` is called.

        Args:
            first_epoch: The first epoch of that run.
            epoch: The epoch in which it stopped.
            step: The number of elements of that epoch that it had taken.
        """
        length = self._batches.length()
        if self._steps is None:
            self._pass_over((epoch - first_epoch) * (1 if length is None else 2))
            for _ in range(epoch - first_epoch):
                self._batches.begin_epoch()
                self._batches.end_epoch()
            return
        began, seen, reads = first_epoch, 0, 0
        for number in range(first_epoch, epoch):
            seen += self._steps if length is None else min(self._steps, length - seen)
            if length is not None and seen >= length:
                began, seen, reads = number + 1, 0, reads + 1
        self._pass_over(reads)
        self._start(began, seen + step)

    def epoch(
        self,
        number: int,
        exchange: Callable[[int], list[int]] | None = None,
        first: int = 0,
    ) -> KerasEpoch:
        """Starts epoch `number`.

        Args:
            number: From 0; with a fixed number of steps the data continues where it was.
            exchange: Not called, as there is one worker.
            first: The element to start at; `steps` of the epoch counts those before it too.
        """
        if self._iterator is None or self._steps is None:
            self._start(number, first)
        else:
            self._batches.begin_epoch()
        ahead, self._first = self._first, None
        may_be_empty, self._any = self._any, True
        steps, limit = None, None
        if self._endless and self._steps is not None:
            # All of them are there, so several may be taken in a call.
            steps = self._steps
        elif self._length is None:
            limit = None if self._steps is None else self._steps - first
        else:
            steps = first + self._length - self._seen
            if self._steps is not None:
                if steps < self._steps:
                    _warn()
                steps = min(steps, self._steps)
            self._seen += steps - first
        return KerasEpoch(
            self._iterator, steps, limit, self._ran_out, ahead=ahead, may_be_empty=may_be_empty
        )

    def _pass_over(self, reads: int) -> None:
        """Makes as many iterators of the data as an earlier run has made."""
        if self._batches.counts_reads:
            if reads and self._ahead is not None:
                self._ahead, self._first, reads = None, None, reads - 1
            for _ in range(reads):
                iterator_of(self._batches.make(0, 0))

    def _start(self, number: int, first: int) -> None:
        self._seen = first
        if self._ahead is not None and self._batches.counts_reads:
            self._batches.begin_epoch()
            self._iterator, self._ahead = self._ahead, None
            if first:
                self._first = None
                for _ in range(first - 1):
                    next(self._iterator)
        else:
            self._first = None
            dataset = self._make(number, first)
            self._batches.begin_epoch()
            self._iterator = iterator_of(dataset)
        self._length = self._batches.length()

    def _make(self, number: int, first: int) -> tf.data.Dataset:
        dataset = self._batches.make(number, first)
        self._endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
        return dataset

    def _ran_out(self) -> None:
        self._iterator = None
        if self._steps is not None:
            _warn()


def _warn() -> None:
    warnings.warn(
        "Your input ran out of data; interrupting training. Make sure that your dataset or "
        "generator can generate at least `steps_per_epoch * epochs` batches. You may need to use "
        "the `.repeat()` function when building your dataset.",
        stacklevel=2,
    )
