"""Batches of one form wait for each other, as many as fit into a share of time."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdist.training.loops.grouping import Grouping, stack, unstack


class Clock:
    """A time that passes when the test lets it."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def batch(value, rows=2):
    return (tf.fill([rows, 3], float(value)), None, tf.fill([rows], value))


def answer(grouping, clock, seconds):
    clock.now += seconds
    grouping.answered(grouping.size)


def of_short_batches(clock):
    """Has seen batches of a millisecond."""
    grouping = Grouping(clock=clock)
    for _ in range(8):
        answer(grouping, clock, 0.002 * grouping.size)
    return grouping


def test_short_batches_come_to_be_sent_many_at_a_time_and_long_ones_never():
    clock = Clock()
    short = Grouping(clock=clock)
    sizes = []
    for _ in range(8):
        answer(short, clock, 0.002 * short.size)
        sizes.append(short.size)
    assert sizes == [1, 1, 2, 4, 8, 16, 16, 16]
    long = Grouping(clock=clock)
    for _ in range(8):
        answer(long, clock, 0.3)
    assert long.size == 1


def test_a_slower_batch_makes_the_next_messages_smaller():
    clock = Clock()
    grouping = of_short_batches(clock)
    for _ in range(5):
        answer(grouping, clock, 0.01 * grouping.size)
    assert grouping.size == 4


def test_answers_at_one_instant_are_not_those_of_short_batches():
    """Two workers that take 0.3 s each may answer together."""
    clock = Clock()
    grouping = Grouping(workers=2, clock=clock)
    for _ in range(20):
        answer(grouping, clock, 0.3)
        answer(grouping, clock, 0.0001)
        assert grouping.size == 1


def test_several_workers_answer_as_many_times_as_often():
    clock = Clock()
    grouping = Grouping(workers=4, clock=clock)
    for _ in range(40):
        answer(grouping, clock, 0.005 * grouping.size / 4)
    assert grouping.size == 8


def test_a_pause_says_nothing_about_batches():
    clock = Clock()
    grouping = of_short_batches(clock)
    grouping.pause()
    answer(grouping, clock, 60.0)
    assert grouping.size == 16


def test_a_message_is_ready_when_it_has_its_size():
    clock = Clock()
    grouping = Grouping(clock=clock)
    assert grouping.add(batch(0))
    assert len(grouping.take()) == 1
    for _ in range(4):
        answer(grouping, clock, 0.002 * grouping.size)
    assert [grouping.add(batch(i)) for i in range(4)] == [False, False, False, True]
    assert [int(each[2][0]) for each in grouping.take()] == [0, 1, 2, 3]
    assert grouping.take() == []


def test_only_dense_batches_of_one_form_wait_together():
    grouping = Grouping()
    grouping.add(batch(0))
    assert grouping.takes(batch(1))
    assert not grouping.takes(batch(1, rows=1))
    assert not grouping.takes((*batch(1), tf.zeros([2])))
    assert not grouping.takes({"x": batch(1)[0], "y": None, "z": batch(1)[2]})
    assert not grouping.takes((batch(1)[0], batch(1)[0], batch(1)[2]))
    sparse = (tf.sparse.eye(2),)
    ragged = (tf.ragged.constant([[1], [2, 3]]),)
    for other in (sparse, ragged):
        grouping.take()
        assert grouping.takes(other)
        grouping.add(other)
        assert not grouping.takes(other)


def test_what_was_stacked_comes_apart_again():
    batches = [batch(i) for i in range(3)]
    stacked = stack(batches)
    assert stacked[0].shape == (3, 2, 3)
    assert stacked[1] is None
    for i, expected in enumerate(batches):
        found = unstack(stacked, tf.constant(i))
        assert found[1] is None
        for part in (0, 2):
            np.testing.assert_array_equal(found[part], expected[part])
