"""Every row of the data reaches one replica, once, in order, whatever the data comes as."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.collectives.layout import ReplicaLayout
from tfdist.errors import ConfigError
from tfdist.training.input.feed import Feed
from tfdist.training.input.make_feed import make_feed

X = np.arange(10, dtype="float32")[:, None]
Y = np.arange(10, dtype="int32")


def rows(feed: Feed, epoch: int = 0) -> list[list[float]]:
    """The first column of each element of an epoch."""
    passed = feed.epoch(epoch)
    taken = range(passed.steps) if passed.steps is not None else itertools.count()
    found = []
    for _ in taken:
        if passed.steps is None and not passed.peek():
            break
        data, _ = passed.pop()
        x = data[0] if isinstance(data, tuple) else data
        found.append(np.asarray(x)[:, 0].tolist())
    return found


@settings(max_examples=200, deadline=None)
@given(workers=st.integers(1, 9), local=st.integers(1, 4), size=st.integers(0, 70), data=st.data())
def test_cuts_of_workers_meet_without_gap_or_overlap(workers, local, size, data):
    shares = [ReplicaLayout(w, workers, local, workers * local) for w in range(workers)]
    bounds = [share.own_rows(size) for share in shares]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == size
    assert all(one[1] == two[0] for one, two in itertools.pairwise(bounds))
    lengths = [end - begin for begin, end in bounds]
    assert max(lengths) - min(lengths) <= local


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_row_goes_to_one_worker_in_order(workers):
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    parts = [
        rows(make_feed(dataset, layout=ReplicaLayout(w, workers, 1, workers)))
        for w in range(workers)
    ]
    whole = [sum((part[i] for part in parts), []) for i in range(3)]
    assert whole == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_shuffled_arrays_differ_by_epoch_and_agree_by_seed():
    feeds = [
        make_feed(X, Y, layout=ReplicaLayout(), batch_size=4, shuffle=True, seed=s)
        for s in (1, 1, 2)
    ]
    first, same, other = (rows(feed) for feed in feeds)
    assert first == same != other
    assert sorted(itertools.chain(*first)) == list(range(10))
    assert rows(feeds[0], epoch=1) != first


def test_generator_loses_nothing_to_the_sample():
    batches = ((X[i : i + 2], Y[i : i + 2]) for i in range(0, 10, 2))
    feed = make_feed(batches, layout=ReplicaLayout(), steps=2)
    assert np.asarray(feed.sample()[0])[:, 0].tolist() == [0, 1]
    assert rows(feed) == [[0, 1], [2, 3]]
    assert rows(feed, 1) == [[4, 5], [6, 7]]


def test_fixed_steps_continue_from_epoch_to_epoch_and_begin_again_at_the_end():
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    feed = make_feed(dataset, layout=ReplicaLayout(), steps=2)
    with pytest.warns(UserWarning, match="after 1 of the 2 steps of epoch 2"):
        assert [rows(feed, epoch) for epoch in range(3)] == [
            [[0, 1, 2, 3], [4, 5, 6, 7]],
            [[8, 9]],
            [[0, 1, 2, 3], [4, 5, 6, 7]],
        ]
    feed.restart()
    assert rows(feed, 3)[0] == [0, 1, 2, 3]


def test_data_of_unknown_length_begins_again_where_it_ends_within_an_epoch():
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).filter(lambda *_: True)
    feed = make_feed(dataset, layout=ReplicaLayout(), steps=2)
    whole = [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.warns(UserWarning, match="ended after 1 of the 2 steps of epoch 2"):
        assert [rows(feed, epoch) for epoch in range(3)] == [whole, [[8, 9]], whole]


def test_py_dataset_is_notified_of_the_end_of_an_epoch():
    import keras

    class Turning(keras.utils.PyDataset):
        turn = 0

        def __len__(self):
            return 2

        def __getitem__(self, index):
            return X[index : index + 1] + self.turn, Y[index : index + 1]

        def on_epoch_end(self):
            self.turn += 10

    feed = make_feed(Turning(), layout=ReplicaLayout())
    assert rows(feed) == [[0], [1]]
    feed.end_epoch()
    assert rows(feed, 1) == [[10], [11]]


def test_lists_of_inputs_stay_together():
    feed = make_feed([X, X + 1], layout=ReplicaLayout(), batch_size=4)
    (pair,) = feed.sample()
    assert np.asarray(pair[1])[0, 0] == 1


def test_sample_is_uncut():
    # Worker 0 of two has no row of a batch of one.
    feed = make_feed(X, Y, layout=ReplicaLayout(0, 2, 1, 2), batch_size=1)
    assert np.asarray(feed.sample()[0]).shape == (1, 1)
    assert feed.rows == 1


def test_empty_shard_stands_by_with_zeros():
    def none(context):
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).take(0)

    feed = make_feed(none, layout=ReplicaLayout(1, 2, 1, 2))
    assert np.asarray(feed.sample()[0]).shape == (1, 1)
    assert feed.rows == 0


@pytest.mark.parametrize("known", [True, False])
def test_shorter_shard_continues_with_nothing(known):
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5)
    if not known:
        dataset = dataset.filter(lambda x, y: True)
    feed = make_feed(lambda context: dataset, layout=ReplicaLayout(0, 2, 1, 2))
    steps = iter([1, 1, 1, 0])  # the other worker has three batches

    def exchange(value):
        if value < 0 or value > 1:  # lengths
            return [value, -1 if value < 0 else 3]
        return [value, next(steps)]

    passed = feed.epoch(0, exchange)
    found = []
    while passed.peek() if passed.steps is None else len(found) < passed.steps:
        (x, _), count = passed.pop()
        assert len(x) == count
        found.append(int(count))
    assert found == [5, 5, 0]


def test_class_weights_become_sample_weights():
    feed = make_feed(X, Y % 3, layout=ReplicaLayout(), batch_size=10, class_weight={0: 0.5, 2: 3.0})
    weights = np.asarray(feed.sample()[2])
    assert weights.tolist() == [{0: 0.5, 1: 1.0, 2: 3.0}[label % 3] for label in range(10)]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"x": X, "y": Y, "sample_weight": X[:, 0], "class_weight": {0: 1.0}}, "class_weight"),
        ({"x": X, "y": Y[:3]}, "3 and 10"),
        ({"x": 3.0}, "row for each"),
        ({"x": lambda context: [1, 2]}, "InputContext"),
    ],
)
def test_bad_data_is_named(arguments, named):
    with pytest.raises(ConfigError, match=named):
        make_feed(**arguments, layout=ReplicaLayout()).sample()


@pytest.mark.parametrize("steps", [None, 2])
def test_an_iterator_of_the_data_is_not_autotuned(steps):
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    feed = make_feed(dataset, layout=ReplicaLayout(), steps=steps)
    assert feed.epoch(0).iterator._dataset.options().autotune.enabled is False
