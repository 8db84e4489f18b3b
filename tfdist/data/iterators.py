"""Makes iterators over datasets that can be dropped without waiting."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def iterator_of(dataset: tf.data.Dataset) -> Any:
    """Returns an iterator over a dataset; see `untuned`."""
    return iter(untuned(dataset))


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset without autotuning, unless its options ask for that.

    TensorFlow tunes an iterator in a thread that sleeps twice as long each time, up to a minute.
    Dropping the iterator wakes it; but in TensorFlow 2.21 one time in five it does not wake, and
    the process stands still until the sleep is over, other threads of Python too. At the end of an
    epoch, one worker then keeps all others waiting. Untuned, `tf.data.AUTOTUNE` means as many
    parallel calls as there are threads.
    """
    if dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
