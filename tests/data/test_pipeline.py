"""Order, sharding, repeatability and cardinality of what workers read."""

from __future__ import annotations

import itertools
from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.selected import some
from tfdist.data import load
from tfdist.errors import ConfigError


def context(pipelines: int, index: int) -> tf.distribute.InputContext:
    return tf.distribute.InputContext(pipelines, index, pipelines)


def batches(dataset: tf.data.Dataset) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(dataset.as_numpy_iterator())


def census(parts: list[tuple[np.ndarray, np.ndarray]]) -> Counter:
    """Counts the distinct (image, label) pairs."""
    return Counter(
        (image.tobytes(), int(label))
        for images, labels in parts
        for image, label in zip(images, labels, strict=True)
    )


@pytest.fixture(scope="module")
def everything(digits):
    return census(batches(digits().train(100, shuffle=False, augment=False).dataset()))


@pytest.mark.parametrize(
    ("workers", "cache"),
    some(itertools.product([1, 2, 3, 5, 11], [True, False]), [(2, False), (3, True), (5, False)]),
)
def test_workers_together_read_every_example_once(digits, everything, cache, workers):
    train = digits().train(64, augment=False, cache=cache)
    assert sum(everything.values()) == 1500
    parts = []
    for index in range(workers):
        dataset = train(context(workers, index), epoch=1)
        mine = batches(dataset)
        assert len(mine) == int(dataset.cardinality())
        assert len(mine) == train.steps == 24
        parts += mine
    assert census(parts) == everything


@pytest.mark.parametrize("workers", [2, 3])
def test_indexed_global_batches_do_not_depend_on_the_number_of_workers(digits, workers):
    train = digits(image_size=12).train(64)
    shards = [batches(train(context(workers, index), epoch=2)) for index in range(workers)]
    for step, (images, labels) in enumerate(batches(train.dataset(first_epoch=2))):
        np.testing.assert_array_equal(images, np.concatenate([s[step][0] for s in shards]))
        np.testing.assert_array_equal(labels, np.concatenate([s[step][1] for s in shards]))


@pytest.mark.parametrize("cache", [True, False], ids=["indexed", "stream"])
def test_an_epoch_depends_on_seed_and_number_only(digits, cache):
    first, again = (digits(seed=7).train(128, cache=cache) for _ in range(2))
    worker = context(2, 1)
    list(first(worker, epoch=0))  # reading one epoch leaves no trace in the next
    dataset = first(worker, epoch=1)
    one = batches(dataset)
    for two in (batches(dataset), batches(again(worker, epoch=1))):
        for (images, labels), (other_images, other_labels) in zip(one, two, strict=True):
            np.testing.assert_array_equal(images, other_images)
            np.testing.assert_array_equal(labels, other_labels)
    for other in (first(worker, epoch=2), digits(seed=8).train(128, cache=cache)(worker, epoch=1)):
        assert not np.array_equal(one[0][0], batches(other)[0][0])


def test_augmentation_differs_by_epoch_for_the_same_example(digits):
    train = digits().train(1500, shuffle=False)
    (first, _), (second, _) = batches(train.dataset(2))
    changed = (first != second).any(axis=(1, 2, 3)).mean()
    assert 0.7 < changed < 0.99  # nine shifts: one in nine stays as it was


def test_stream_without_shuffling_keeps_the_order(digits):
    stream = digits().train(100, shuffle=False, augment=False, cache=False)
    indexed = digits().train(100, shuffle=False, augment=False, cache=True)
    for ours, theirs in zip(batches(stream.dataset()), batches(indexed.dataset()), strict=True):
        np.testing.assert_array_equal(ours[1], theirs[1])


@pytest.mark.parametrize("cache", [True, False], ids=["indexed", "stream"])
def test_drop_remainder_leaves_out_other_examples_each_epoch(digits, cache):
    train = digits().train(1000, augment=False, drop_remainder=True, cache=cache)
    assert train.steps == 1
    epochs = [batches(train(context(3, 0), epoch)) for epoch in range(2)]
    assert [len(images) for epoch in epochs for images, _ in epoch] == [333, 333]
    assert census(epochs[0]) != census(epochs[1])


def test_a_last_batch_smaller_than_the_workers_ends_some_of_them_early(digits):
    test = digits().test(74)  # 297 = 4 * 74 + 1
    counts = [[len(y) for _, y in batches(test(context(2, index)))] for index in range(2)]
    assert counts == [[37, 37, 37, 37], [37, 37, 37, 37, 1]]
    assert [int(test(context(2, index)).cardinality()) for index in range(2)] == [4, 5]


@pytest.mark.parametrize("cache", [True, False], ids=["indexed", "stream"])
@pytest.mark.parametrize("first", [0, 5])
def test_a_workers_part_of_the_last_batch_may_be_larger_than_of_the_others(digits, cache, first):
    test = digits().test(12, cache=cache)  # 297 = 24 * 12 + 9
    parts = test(context(7, 3), first_batch=first)
    assert [len(y) for _, y in batches(parts)] == [1] * (24 - first) + [2]
    assert int(parts.cardinality()) == 25 - first


def test_epochs_in_one_dataset_do_not_share_a_batch(digits):
    train = digits().train(400)
    dataset = train.dataset(epochs=2)
    assert int(dataset.cardinality()) == 8
    assert [len(labels) for _, labels in batches(dataset)] == [400, 400, 400, 300] * 2


def test_it_can_be_built_inside_a_function(digits):
    train = digits().train(500)  # as the parameter-server coordinator does
    inside = tf.function(lambda: train(None, 3).reduce(0, lambda n, b: n + tf.shape(b[1])[0]))
    assert int(inside()) == 1500


def test_it_feeds_a_strategy(digits, devices):
    strategy = tf.distribute.MirroredStrategy(devices[:2])
    train = digits().train(64)
    iterator = iter(strategy.distribute_datasets_from_function(train))
    images, _ = next(iterator)
    assert [value.shape[0] for value in strategy.experimental_local_results(images)] == [64, 64]


def test_shapes_and_types(digits):
    source = digits(image_size=(16, 24), channels=3)
    assert (source.num_classes, source.num_train, source.num_test) == (10, 1500, 297)
    images, labels = batches(source.test(297).dataset())[0]
    assert images.shape == (297, *source.image_shape) == (297, 16, 24, 3)
    assert (images.dtype, labels.dtype) == (np.float32, np.int32)


@pytest.mark.parametrize("seed", [0, 1])
def test_synthetic_is_cheap_repeats_and_does_not_depend_on_workers(seed):
    source = load("synthetic", image_size=8, num_classes=5, num_examples=100, seed=seed)
    train = source.train(30)
    whole = batches(train.dataset())
    assert [len(labels) for _, labels in whole] == [30, 30, 30, 10]
    np.testing.assert_array_equal(whole[0][0], whole[1][0])
    assert set(np.unique(whole[0][1])) <= set(range(5))
    halves = [batches(train(context(4, index), epoch=1)) for index in range(4)]
    for step, (images, labels) in enumerate(whole):
        np.testing.assert_array_equal(images, np.concatenate([h[step][0] for h in halves]))
        np.testing.assert_array_equal(labels, np.concatenate([h[step][1] for h in halves]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.train(0), "global_batch: 0 is not allowed; give 1 or more"),
        (lambda s: s.train(6.4), "global_batch: 6.4 is not an integer"),
        (lambda s: s.train(4)(context(5, 0)), "4 is smaller than the 5 workers; give 5 or more"),
        (lambda s: s.train(1501, drop_remainder=True), "larger than the 1500 examples"),
        (lambda s: s.train(4)(None, epoch=-1), "epochs count from 0"),
        (lambda s: s.train(4).dataset(0), "epochs: 0 is not allowed"),
    ],
)
def test_what_cannot_be_read_is_one_line(digits, make, message):
    with pytest.raises(ConfigError, match=message) as raised:
        make(digits())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "workers", "first"),
    some(
        itertools.product(["indexed", "stream", "synthetic"], [1, 2], [0, 1, 3, 99]),
        [
            *(("indexed", 2, 1), ("indexed", 1, 99), ("stream", 1, 3), ("stream", 2, 0)),
            *(("synthetic", 1, 1), ("synthetic", 2, 99)),
        ],
    ),
)
def test_an_epoch_from_its_middle_is_the_rest_of_it(digits, kind, workers, first):
    if kind == "synthetic":
        train = load("synthetic", image_size=8, num_classes=5, num_examples=450).train(200)
    else:
        train = digits().train(500, cache=kind == "indexed")
    for index in range(workers):
        whole = batches(train(context(workers, index), 2))
        rest = train(context(workers, index), 2, first_batch=first)
        assert int(rest.cardinality()) == len(whole[first:])
        assert census(batches(rest)) == census(whole[first:])


def test_keras_own_fit_says_what_to_give_it(digits):
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten()])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"Unrecognized .* model.fit takes its .dataset\(epochs\)"):
        model.fit(digits().train(64), verbose=0)


def test_labels_may_be_probabilities(digits):
    plain, vectors = (digits().train(64, one_hot=one_hot) for one_hot in (False, True))
    for (images, labels), (same, probabilities) in zip(plain(), vectors(), strict=True):
        np.testing.assert_array_equal(images, same)
        np.testing.assert_array_equal(np.eye(10, dtype="float32")[labels], probabilities)
