"""The table of types in which gradients are sent between replicas."""

from __future__ import annotations

import tensorflow as tf

# By the name that a user gives; None is a gradient's own type, without rounding.
WIRE_TYPES: dict[str, tf.DType | None] = {
    "auto": None,
    "float32": None,
    "bfloat16": tf.bfloat16,
    "float16": tf.float16,
}
