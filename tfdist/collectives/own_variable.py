"""Makes variables that belong to this process, not to a strategy."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable


def own_variable(initial: Any) -> tf.Variable:
    """Makes a variable of this process, also inside a strategy's scope.

    In a scope `tf.Variable` makes the strategy's kind, which some strategies do not let a replica
    assign.

    Args:
        initial: Its first value.
    """
    return ResourceVariable(initial, trainable=False)
