"""Makes sample weights of the weights of classes, by the labels of each batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.errors import ConfigError


def with_class_weight(
    dataset: tf.data.Dataset, class_weight: dict[int, float] | None
) -> tf.data.Dataset:
    """Adds sample weights by class to a dataset; returns it unchanged for None.

    Raises:
        ConfigError: Its batches are not `(x, y)` of one target.
    """
    if class_weight is None:
        return dataset
    table = np.ones(max(class_weight) + 1, np.float32)
    for label, weight in class_weight.items():
        table[label] = weight
    table = tf.constant(table)

    def add(*parts: Any) -> Any:
        check_weighable(*parts)
        x, y = parts
        return x, y, _weights_of(y, table)

    # AutoGraph would wrap the errors into another.
    return dataset.map(tf.autograph.experimental.do_not_convert(add))


def check_weighable(*parts: Any) -> None:
    """Rejects data without labels by which weights of classes could be found.

    Args:
        *parts: What `x`, `y` and `sample_weight` are; the last ones may be missing.

    Raises:
        ConfigError: It has no target or several, or sample weights.
    """
    if len(parts) == 3:
        raise ConfigError(
            "class_weight: given as well as sample_weight; allowed: one of them (multiply the "
            "class weights into the sample weights)"
        )
    if len(parts) != 2 or keras.tree.is_nested(parts[1]):
        raise ConfigError("class_weight: allowed with elements (x, y) of one target only")


def _weights_of(y: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    labels = y
    if y.shape.rank is not None and y.shape.rank > 1:
        labels = tf.argmax(y, -1) if y.shape[-1] != 1 else tf.squeeze(y, -1)
    labels = tf.cast(tf.round(tf.cast(labels, tf.float32)), tf.int32)
    known = labels < tf.shape(table)[0]
    weights = tf.gather(table, tf.where(known, labels, 0))
    return tf.where(known, weights, 1.0)
