"""Epochs of one device continue, end and are resumed as those of Keras' own iterator."""

from __future__ import annotations

import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters import get_data_adapter

from tfdist.training.input.adapters import Batches, DatasetBatches
from tfdist.training.input.feed import Feed


def numbers(epoch: int = 0, first: int = 0) -> tf.data.Dataset:
    """Five batches of two rows, those of epoch 1 from 100 on."""
    start = 100 * epoch
    return tf.data.Dataset.range(start, start + 10).batch(2).skip(first)


class Made(Batches):
    """Batches of a function of epoch and first batch, and what they were notified of."""

    def __init__(self, make=numbers, length=None, rows=None):
        super().__init__(None)
        self._make, self._length, self._rows = make, length, rows
        self.notified = []

    length = property(lambda self: self._length)
    rows = property(lambda self: self._rows)

    def epoch(self, number, first):
        return self._make(number, first)

    def begin_epoch(self):
        self.notified.append("begin")

    def end_epoch(self):
        self.notified.append("end")


def taken(passed, first: int = 0) -> list[int]:
    """The first row of each batch of an epoch, from one of them on."""
    found = []
    while passed.peek() if passed.steps is None else first + len(found) < passed.steps:
        found.append(int(passed.pop()[0]))
    return found


def test_each_epoch_is_the_data_once():
    feed = Feed(Made(length=5))
    assert feed.whole
    assert [taken(feed.epoch(epoch)) for epoch in range(2)] == [
        [0, 2, 4, 6, 8],
        [100, 102, 104, 106, 108],
    ]
    part = feed.epoch(1, first=3)
    assert (part.steps, int(part.pop()[0]), int(part.pop()[0])) == (5, 106, 108)


def test_the_end_of_data_of_unknown_length_shows_when_it_is_reached():
    feed = Feed(Made())
    first = feed.epoch(0)
    assert first.steps is None
    assert not first.may_be_empty
    assert taken(first) == [0, 2, 4, 6, 8]
    second = feed.epoch(1)
    assert second.may_be_empty
    assert taken(second)[0] == 100


def test_data_without_end_has_as_many_steps_as_are_asked_for():
    feed = Feed(Made(lambda epoch, first: numbers().repeat()), 4)
    first, part = feed.epoch(0), feed.epoch(1, first=1)
    assert (first.steps, part.steps) == (4, 4)
    assert [int(first.pop()[0]) for _ in range(6)] == [0, 2, 4, 6, 8, 0]


def test_fixed_steps_continue_over_epochs_and_warn_where_the_data_ends():
    feed = Feed(Made(length=5), 2)
    found = []
    for epoch in (0, 1):
        found.append(taken(feed.epoch(epoch)))
        feed.end_epoch()
    with pytest.warns(UserWarning, match="ran out of data.*after 1 of the 2 steps of epoch 3"):
        found.append(taken(feed.epoch(2)))
    feed.end_epoch()
    found.append(taken(feed.epoch(3)))
    assert found == [[0, 2], [4, 6], [8], [300, 302]]
    feed.restart()
    assert taken(feed.epoch(4)) == [400, 402]
    endless = Feed(Made(), 3)
    assert taken(endless.epoch(0)) == [0, 2, 4]
    with pytest.warns(UserWarning, match="ran out of data"):
        assert taken(endless.epoch(1)) == [6, 8]


def test_counting_the_rows_of_a_batch_loses_none():
    feed = Feed(Made(length=5))
    assert feed.rows == 2
    assert taken(feed.epoch(0)) == [0, 2, 4, 6, 8]
    known = Feed(Made(lambda epoch, first: pytest.fail("read"), 5, 7))
    assert known.rows == 7
    assert Feed(Made(lambda epoch, first: numbers().take(0), 0)).rows == 0


def reshuffled() -> Batches:
    dataset = tf.data.Dataset.range(10).shuffle(10, seed=3).batch(2)
    return DatasetBatches(get_data_adapter(dataset))


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("counts_rows", [False, True])
@pytest.mark.parametrize("to", [0, 3])
@pytest.mark.parametrize(("steps", "step"), [(None, 0), (2, 0), (2, 1)])
def test_data_that_reshuffles_is_resumed_in_its_order(steps, step, to, counts_rows):
    feed, again = (Feed(reshuffled(), steps) for _ in range(2))
    orders = []
    for epoch in range(4):
        orders.append(taken(feed.epoch(epoch)))
        feed.end_epoch()
    assert len({tuple(order) for order in orders}) == 4
    if counts_rows:
        assert again.rows == 2
    again.resume(0, to, step)
    assert taken(again.epoch(to, first=step), step) == orders[to][step:]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("steps", [None, 2])
def test_the_data_is_notified_of_beginnings_and_ends(steps):
    batches = Made(length=5)
    feed = Feed(batches, steps)
    taken(feed.epoch(0))
    feed.end_epoch()
    assert batches.notified == ["begin", "end"]
    again = Feed(batches, steps)
    again.resume(0, 2, 0)
    assert batches.notified == ["begin", "end"] * 3
    again.epoch(2)
    assert batches.notified == [*["begin", "end"] * 3, "begin"]


def test_an_iterator_of_the_data_is_not_autotuned():
    feed = Feed(Made(length=5))
    assert feed.epoch(0).iterator._dataset.options().autotune.enabled is False
