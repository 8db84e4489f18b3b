"""A process has the rows of its replicas, and variables that no strategy distributes."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfdist
from tfdist.collectives.layout import ReplicaLayout, own_variable
from tfdist.partition import part


def test_a_process_on_its_own_has_one_replica_and_every_row():
    layout = ReplicaLayout()
    assert (layout.worker, layout.workers, layout.local_replicas, layout.replicas) == (0, 1, 1, 1)
    assert layout.first == 0
    assert layout.own_rows(7) == (0, 7)


@pytest.mark.parametrize(("worker", "first"), [(0, 0), (1, 4), (2, 8)])
def test_the_first_replica_comes_behind_those_of_earlier_workers(worker, first):
    assert ReplicaLayout(worker, workers=3, local_replicas=4, replicas=12).first == first


def test_rows_are_those_of_all_local_replicas_together():
    """13 rows over three workers of two replicas: parts of 2 or 3, so 4, 4 and 5 a worker."""
    layouts = [ReplicaLayout(worker, 3, 2, 6) for worker in range(3)]
    assert [layout.own_rows(13) for layout in layouts] == [(0, 4), (4, 8), (8, 13)]
    for layout in layouts:
        begin, end = layout.own_rows(13)
        assert begin == part(13, 6, layout.first)[0]
        assert end == part(13, 6, layout.first + 1)[1]


def test_a_batch_smaller_than_the_job_leaves_workers_without_rows():
    assert [ReplicaLayout(w, 4, 1, 4).own_rows(1) for w in range(4)] == [
        (0, 0),
        (0, 0),
        (0, 0),
        (0, 1),
    ]


def test_rows_may_be_counted_by_a_tensor():
    begin, end = ReplicaLayout(1, 2, 3, 6).own_rows(tf.constant(11))
    assert (int(begin), int(end)) == (5, 11)
    assert begin.dtype == end.dtype == tf.int32


@pytest.mark.parametrize("name", ["mirrored", "central_storage"])
def test_a_replica_may_assign_it(devices, name):
    strategy = getattr(tfdist, f"{name}_strategy")(devices[:2])
    with strategy.scope():
        variable = own_variable(tf.zeros(2))
        strategy.run(tf.function(lambda: variable.assign([1.0, 2.0])))
    assert not isinstance(variable, tf.distribute.DistributedValues)
    assert (variable.numpy().tolist(), variable.trainable) == ([1.0, 2.0], False)
