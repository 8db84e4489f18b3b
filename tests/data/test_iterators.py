"""Iterators are not autotuned, unless the data's owner asks for it."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.data.iterators import iterator_of, untuned


def tuned(enabled):
    options = tf.data.Options()
    options.autotune.enabled = enabled
    options.deterministic = False
    return tf.data.Dataset.range(3).with_options(options)


def test_autotuning_is_off_where_nobody_asks_for_it():
    dataset = untuned(tf.data.Dataset.range(3))
    assert dataset.options().autotune.enabled is False
    assert dataset.options().deterministic is None


@pytest.mark.parametrize("enabled", [True, False])
def test_the_owners_choice_is_kept(enabled):
    dataset = tuned(enabled)
    assert untuned(dataset) is dataset


def test_a_reading_counts_once_for_a_dataset_that_reshuffles():
    read, expected = (
        tf.data.Dataset.range(20).shuffle(20, seed=1, reshuffle_each_iteration=True)
        for _ in range(2)
    )
    for _ in range(3):
        assert [int(x) for x in iterator_of(read)] == [int(x) for x in expected]
