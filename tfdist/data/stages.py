"""Builds the stages of an image pipeline one upon the other, so that each can be timed."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.data.augment import Transform
from tfdist.data.splits import FileSplit, IndexedSplit, StreamSplit


def stages(
    split: IndexedSplit, transform: Transform, *, in_memory: bool, augments: bool
) -> dict[str, tf.data.Dataset]:
    """Returns examples without end as they are after each stage, by its name.

    Args:
        split: The examples.
        transform: Resizes, augments and normalises an image.
        in_memory: Whether decoded images are kept in memory, which leaves out reading and decoding.
        augments: Whether images are augmented.
    """
    if isinstance(split, FileSplit):
        made = {
            "read": _rows(split).map(split.read, tf.data.AUTOTUNE),
            "decode": _rows(split).map(split.fetch, tf.data.AUTOTUNE),
        }
    elif in_memory or not isinstance(split, StreamSplit):
        made = {"memory": _rows(split).map(split.fetch, tf.data.AUTOTUNE)}
    else:
        encoded = split.stream(0, split.num_examples, None).repeat()
        decode = split.decode

        def decoded_example(image: Any, label: Any) -> Any:
            return decode(image), label

        made = {"read": encoded, "decode": encoded.map(decoded_example, tf.data.AUTOTUNE)}
    *_, decoded = made.values()

    def prepare(number: tf.Tensor, example: Any) -> Any:
        image, label = example
        seed = tf.stack([tf.cast(number, tf.int32), 0]) if augments else None
        return transform(image, seed), label

    made["augment" if augments else "resize"] = decoded.enumerate().map(prepare, tf.data.AUTOTUNE)
    return made


def _rows(split: IndexedSplit) -> tf.data.Dataset:
    return tf.data.Dataset.range(split.num_examples).repeat()
