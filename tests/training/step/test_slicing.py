"""Replicas take every row of a batch once, in order, and their weights add up to one."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.training.step.replicas import X, Y, on_each, slicer_of, tensors
from tfdist.collectives.layout import ReplicaLayout
from tfdist.errors import ConfigError
from tfdist.training.input.batch import rows_between
from tfdist.training.step.slicing import Slice, Slicer, as_the_whole, by_batch, by_nominal


def slice_of(slicer: Slicer, replica: int, element: object) -> Slice:
    """The slice of any replica of any worker."""
    with tf.distribute.ReplicaContext(tf.distribute.get_strategy(), replica):
        return slicer(element)


@pytest.mark.parametrize("build", ["mirrored_strategy", "central_storage_strategy"])
def test_seven_rows_over_two_replicas_are_three_and_four(devices, build):
    strategy = getattr(tfdist, build)(devices[:2])
    slicer = slicer_of(strategy, (X, Y))
    one, two = on_each(strategy, lambda: slicer((tensors((X, Y)), 7)))
    assert (one.count, two.count) == (3, 4)
    np.testing.assert_array_equal(one.data[0], X[:3])
    np.testing.assert_array_equal(two.data[0], X[3:])
    np.testing.assert_array_equal(two.data[1], Y[3:])
    assert one.weight == pytest.approx(3 / 7)
    assert one.weight + two.weight == pytest.approx(1)


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize(("workers", "local"), [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2)])
def test_replicas_of_all_workers_take_each_row_once_in_order(workers, local, rows):
    x = tf.constant(X[:rows])
    taken, weight = [], 0.0
    for worker in range(workers):
        layout = ReplicaLayout(worker, workers, local, workers * local)
        slicer = Slicer(layout, whole=True, weighing=by_batch)
        slicer.take_sample(x)
        begin, end = layout.own_rows(rows)
        for replica in range(layout.first, layout.first + local):
            piece = slice_of(slicer, replica, (x[begin:end], tf.constant(rows)))
            taken.append(piece.data[: piece.count])
            weight += float(piece.weight)
    np.testing.assert_array_equal(tf.concat(taken, 0), X[:rows])
    assert weight == pytest.approx(1)


def test_a_workers_own_rows_are_cut_over_its_own_replicas_and_weighed_by_a_nominal_batch():
    layout = ReplicaLayout(worker=1, workers=2, local_replicas=2, replicas=4)
    slicer = Slicer(layout, whole=False, weighing=by_nominal(10))
    x = tf.constant(X)
    slicer.take_sample(x)
    pieces = [slice_of(slicer, replica, (x, tf.constant(7))) for replica in (2, 3)]
    assert [int(piece.count) for piece in pieces] == [3, 4]
    assert [float(piece.weight) for piece in pieces] == pytest.approx([0.3, 0.4])
    np.testing.assert_array_equal(pieces[1].data, X[3:])


def test_a_sample_of_the_same_kind_stands_in_for_no_rows_and_counts_for_nothing():
    layout = ReplicaLayout(worker=0, workers=2, local_replicas=1, replicas=2)
    slicer = Slicer(layout, whole=True, weighing=by_batch)
    x, y = tensors((X, Y))
    kinds = [(x, y), (x, y[:, 0]), (tf.cast(x, tf.int32), y), (x, None), (x, y, y), {"a": x}]
    for place, kind in enumerate(kinds):  # Each has another row for its sample.
        slicer.take_sample(rows_between(kind, place, 7))
    for place, kind in enumerate(kinds):
        piece = slicer((rows_between(kind, 0, 0), 1))
        assert (int(piece.count), float(piece.weight)) == (0, 0.0)
        expected = rows_between(kind, place, place + 1)
        tf.nest.map_structure(np.testing.assert_array_equal, piece.data, expected)


def test_parts_that_differ_in_rows_cannot_be_shared_out():
    data = tensors((X, Y[:3]))
    layout = ReplicaLayout(local_replicas=2, replicas=2)
    with pytest.raises(ConfigError, match="its parts have 7 and 3 rows"):
        Slicer(layout, whole=True, weighing=by_batch).take_sample(data)
    Slicer(ReplicaLayout(), whole=True, weighing=by_batch).take_sample(data)


def test_what_slices_count_for():
    count, rows = tf.constant(3), tf.constant(4)
    assert float(as_the_whole(count, rows)) == 1.0
    assert float(by_batch(count, rows)) == 0.75
    assert float(by_nominal(6)(count, rows)) == 0.5
    assert float(by_nominal(0)(tf.constant(0), tf.constant(0))) == 0.0
