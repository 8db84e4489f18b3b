"""Variables that are tfdist's own, and no strategy's."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable


def own_variable(initial: Any) -> tf.Variable:
    """Makes a variable of this process, also inside a strategy's scope.

    There `tf.Variable` makes one of the strategy's, which not every strategy lets a replica assign.

    Args:
        initial: Its first value.
    """
    return ResourceVariable(initial, trainable=False)
