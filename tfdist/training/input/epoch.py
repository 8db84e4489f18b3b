"""Iterates over the elements of one pass over the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Epoch:
    """One pass over the data, whose length may be unknown.

    Args:
        iterator: Iterates over the elements.
        steps: The number of elements; None if unknown.
        limit: The largest number of elements to take where `steps` is unknown; None for all.
        ran_out: Called with the number of elements taken if they end before the limit.

    Attributes:
        several: Whether a call may ask for several elements where nobody knows how many there
            are; its end is then named as Keras does, by the last step there might have been.
        may_be_empty: Whether it may have no elements.
        taken: How many elements were taken one by one.
        resident_arrays: Tensors of which the elements are the numbers of rows; None where
            elements are data.
    """

    def __init__(
        self,
        iterator: Any,
        steps: int | None,
        *,
        limit: int | None = None,
        ran_out: Callable[[int], None] = lambda taken: None,
    ) -> None:
        self.iterator = iterator
        self.steps = steps
        self.several = False
        self.may_be_empty = False
        self.taken = 0
        self.resident_arrays: Any = None
        self._limit = limit
        self._ran_out = ran_out
        self._next: Any = None  # As an optional.

    def peek(self) -> bool:
        """Fetches one element ahead; returns whether there was one. For unknown `steps`."""
        if self._limit is not None and self.taken >= self._limit:
            return False
        if self._next is None:
            self._next = self._fetch()
            if self._next is None:
                self._limit = self.taken
                self._ran_out(self.taken)
        return self._next is not None

    def pop(self) -> Any:
        """Returns the element fetched ahead, or else the next one."""
        if self._next is not None:
            return self.pop_optional().get_value()
        self.taken += 1
        return next(self.iterator)

    def pop_optional(self) -> Any:
        """Returns the element fetched ahead, as an optional, which keeps the dataset's shapes."""
        optional, self._next = self._next, None
        self.taken += 1
        return optional

    def _fetch(self) -> Any:
        """Returns the next element, as an optional; None at the end."""
        optional = self.iterator.get_next_as_optional()
        return optional if bool(optional.has_value()) else None


class UnevenEpoch(Epoch):
    """Shards of unknown lengths: the workers exchange before each step whether any has data.

    Args:
        iterator: Iterates over elements `(data, rows, has_data)`, without end.
        exchange: Returns every worker's value of a number.
    """

    def __init__(self, iterator: Any, exchange: Callable[[int], list[int]]) -> None:
        super().__init__(iterator, None)
        self._exchange = exchange

    def _fetch(self) -> Any:
        *element, has_data = next(self.iterator)
        if not any(self._exchange(int(has_data))):
            return None
        return tf.experimental.Optional.from_value(tuple(element))
