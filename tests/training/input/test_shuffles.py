"""What each worker would read in another order is found in the graph of a dataset."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.training.input.shuffles import is_random, require_an_order, seeds_of


def numbers() -> tf.data.Dataset:
    return tf.data.Dataset.range(8)


def parallel(deterministic: bool) -> tf.data.Dataset:
    return numbers().map(lambda x: x, num_parallel_calls=2, deterministic=deterministic)


def loose() -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = False
    return numbers().with_options(options)


def zipped(*seeds: int | None) -> tf.data.Dataset:
    return tf.data.Dataset.zip(tuple(numbers().shuffle(8, seed=seed) for seed in seeds))


@pytest.fixture(autouse=True)
def _no_global_seed():
    """Tests before may have set one, with which every shuffle has a seed."""
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(None)


def test_seeds_of_all_shuffles_the_last_first():
    dataset = numbers().shuffle(8, seed=3).batch(2).shuffle(4, seed=5).prefetch(1)
    last, first = seeds_of(dataset)
    assert last.endswith("5")
    assert first.endswith("3")
    assert seeds_of(numbers().shuffle(8)) == ["none"]
    assert [seed[-1] for seed in seeds_of(zipped(1, 2))] == ["1", "2"]
    assert seeds_of(numbers().batch(2)) == []


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: numbers().shuffle(8).batch(2), "x: shuffle has no seed"),
        (lambda: zipped(1, None), "x: shuffle has no seed"),
        (loose, "order is not deterministic"),
        (lambda: parallel(False).batch(2), "order is not deterministic"),
    ],
)
def test_datasets_without_one_order_are_refused(make, named):
    with pytest.raises(ConfigError, match=named):
        require_an_order("x", make())


def test_datasets_of_one_order_and_other_data_are_let_pass():
    for data in (numbers(), zipped(1, 2), parallel(True), [3, 1], lambda context: numbers()):
        require_an_order("x", data)
    tf.random.set_seed(7)
    require_an_order("x", numbers().shuffle(8))


def test_functions_that_draw_are_found_wherever_the_drawing_is():
    seeds = keras.random.SeedGenerator(1)

    @tf.function
    def inner(x):
        return x + tf.random.uniform([], maxval=2, dtype=tf.int64)

    def drawn_in_a_branch(x):
        return tf.cond(x > 3, lambda: inner(x), lambda: x)

    for function in (
        lambda x: tf.random.uniform([], maxval=2, dtype=tf.int64),
        lambda x: tf.random.stateless_normal([2], seed=[1, 2]),
        lambda x: keras.random.normal((2,), seed=seeds),
        inner,
        drawn_in_a_branch,
    ):
        assert is_random(numbers().map(function).batch(2))
    assert not is_random(numbers().shuffle(8).map(lambda x: tf.cast(x, tf.float32) + 1).batch(2))
    assert not is_random([1, 2])
