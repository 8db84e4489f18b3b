"""Reads a user's `tf.data.Dataset` as often as Keras does, so that shuffles give the same.

A dataset that reshuffles gives another order each time an iterator of it is made. So the first
epoch continues with the iterator that read the first batch, with which a model is built; and after
each epoch of known length an iterator is made that is not used, as Keras' `fit` does.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.data.iterators import iterator_of

_plainly = tf.autograph.experimental.do_not_convert
_MANY = 2**62


class Readings:
    """The iterators of one dataset, epoch by epoch.

    Args:
        dataset: The dataset.
        goes_on: Whether the next epoch continues where the last one stopped, so that Keras makes
            no iterator in between.
    """

    def __init__(self, dataset: tf.data.Dataset, *, goes_on: bool) -> None:
        self._dataset = dataset
        self._goes_on = goes_on
        self._length = int(dataset.cardinality())
        self._ahead: tuple[Any, Any] | None = None  # An iterator, and the element it has given.

    def peek(self) -> tf.data.Dataset:
        """Returns a dataset of the first element, with which the next epoch also begins."""
        if self._ahead is None:
            iterator = iterator_of(self._dataset)
            self._ahead = iterator, iterator.get_next_as_optional()
        _, first = self._ahead
        if not bool(first.has_value()):
            return self._dataset.take(0)
        return tf.data.Dataset.from_tensors(first.get_value())

    def make(self, epoch: int, first: int) -> tf.data.Dataset:
        """Returns the dataset of an epoch, from element number `first` on."""
        del epoch  # The content depends on the number of readings only.
        dataset = self._dataset if self._ahead is None else self._gone_on_with()
        return dataset.skip(first) if first else dataset

    def end_epoch(self) -> None:
        """Makes the iterator that Keras makes after an epoch."""
        if self._length >= 0 and not self._goes_on:
            iterator_of(self._dataset)

    def pass_over(self, epochs: int) -> None:
        """Makes as many iterators as earlier epochs have made."""
        readings = epochs * (2 if self._length >= 0 else 1)
        if readings and self._ahead is not None:
            self._ahead = None
            readings -= 1
        for _ in range(readings):
            iterator_of(self._dataset)

    def _gone_on_with(self) -> tf.data.Dataset:
        assert self._ahead is not None
        (iterator, first), self._ahead = self._ahead, None
        if not bool(first.has_value()):
            return self._dataset
        rest = (
            tf.data.Dataset.range(_MANY)
            .map(_plainly(lambda _: iterator.get_next_as_optional()))
            .take_while(_plainly(lambda optional: optional.has_value()))
            .map(_plainly(lambda optional: optional.get_value()))
        )
        whole = tf.data.Dataset.from_tensors(first.get_value()).concatenate(rest)
        if self._length == tf.data.UNKNOWN_CARDINALITY:
            return whole
        return whole.apply(tf.data.experimental.assert_cardinality(self._length))
