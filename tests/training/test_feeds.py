"""What users hand over as data becomes the feeds that are trained and validated on."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.training.loops.made import shard_feed
from tfdist.collectives.process_group import ProcessGroup
from tfdist.errors import ConfigError
from tfdist.training.feeds import Feeds, validation_is_due

X = np.arange(10, dtype="float32")[:, None]
Y = 2 * X
WEIGHTS = np.linspace(0.0, 1.0, 10, dtype="float32")


@pytest.fixture(params=[True, False], ids=["of Keras", "of replicas"])
def feeds(request, devices):
    strategy = tfdist.mirrored_strategy(devices[: 1 if request.param else 2])
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
    return Feeds(model, ProcessGroup(strategy), of_keras=request.param, steps_a_call=lambda: 1)


def elements(feed):
    """The batches of an epoch, each a list of its parts' first columns."""
    epoch = feed.epoch(0)
    found = []
    while len(found) < epoch.steps:
        element = next(epoch.iterator)
        parts = [
            leaf for leaf in tf.nest.flatten(element) if tf.is_tensor(leaf) and leaf.shape.rank
        ]
        found.append([np.asarray(part).reshape(-1).tolist() for part in parts])
    return found


def test_arrays_come_in_global_batches(feeds):
    feed = feeds.make(X, Y, WEIGHTS, batch_size=8)
    x, y, weights = (a.reshape(-1).tolist() for a in (X, Y, WEIGHTS))
    assert elements(feed) == [[x[:8], y[:8], weights[:8]], [x[8:], y[8:], weights[8:]]]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_what_is_validated_on_may_be_arrays_or_anything_else(feeds, parts):
    arrays = (X, Y, WEIGHTS)[:parts]
    batch = [a[:4].reshape(-1).tolist() for a in arrays]
    assert elements(feeds.validation(arrays, 4, 1))[0] == batch
    dataset = tf.data.Dataset.from_tensor_slices(arrays).batch(4)
    found = elements(feeds.validation(dataset, 8, None))
    assert (len(found), found[0]) == (3, batch)  # It comes in batches.


def test_the_last_part_of_arrays_may_be_held_out(feeds):
    (x, y, weights), (held_x, held_y, *_) = feeds.hold_out((X, Y, WEIGHTS), 0.3, None)
    assert [np.asarray(a).reshape(-1).tolist() for a in (x, weights)] == [
        list(range(7)),
        WEIGHTS[:7].tolist(),
    ]
    assert np.asarray(held_x).reshape(-1).tolist() == [7, 8, 9]
    assert np.asarray(held_y).reshape(-1).tolist() == [14, 16, 18]
    arrays = (X, Y, None)
    assert feeds.hold_out(arrays, 0.0, "given") == (arrays, "given")
    assert feeds.hold_out(arrays, 0.5, "given")[1] == "given"


def test_no_part_of_a_dataset_is_held_out(feeds):
    with pytest.raises((ConfigError, ValueError), match="validation_split"):
        feeds.hold_out((tf.data.Dataset.range(3), None, None), 0.5, None)


def test_the_order_of_arrays_follows_from_the_seed_of_keras(feeds):
    seeds = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        seeds.append(feeds.draw_seed(X))
    assert seeds[0] == seeds[1] != seeds[2]
    state = np.random.get_state()[1].tolist()
    assert feeds.draw_seed(tf.data.Dataset.range(3)) == feeds.draw_seed(lambda context: None) == 0
    assert np.random.get_state()[1].tolist() == state


def test_the_global_batch_is_counted_where_it_is_needed(feeds):
    feed = feeds.make(
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(4), None, None, batch_size=None
    )
    feed.restart()
    if not feeds._of_keras:
        feed.sample()
    assert feeds.global_batch(feed, needed=True) == 4
    assert feeds.global_batch(feed, needed=False) == (0 if feeds._of_keras else 4)
    own = shard_feed(3)
    own.sample()
    assert feeds.global_batch(own, needed=False) == 3


def test_keras_may_be_told_to_run_fewer_epochs(feeds):
    assert feeds.most_epochs(5) == 5
    keras.config.set_max_epochs(2)
    try:
        assert (feeds.most_epochs(5), feeds.most_epochs(1)) == (2, 1)
    finally:
        keras.config.set_max_epochs(None)


def test_keras_may_be_told_to_run_fewer_steps(feeds):
    keras.config.set_max_steps_per_epoch(2)
    try:
        found = [
            feeds.make(X, Y, None, batch_size=2, steps=steps).epoch(0).steps
            for steps in (None, 1, 4)
        ]
    finally:
        keras.config.set_max_steps_per_epoch(None)
    assert found == [2, 1, 2]


@pytest.mark.parametrize(
    ("frequency", "due"), [(1, [0, 1, 2, 3]), (2, [1, 3]), (9, []), ([1, 4], [0, 3]), ((3,), [2])]
)
def test_validation_is_due_every_so_many_epochs_or_in_those_that_are_named(frequency, due):
    assert [epoch for epoch in range(4) if validation_is_due(epoch, frequency)] == due
