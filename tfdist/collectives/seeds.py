"""Sets the same TensorFlow seed on every worker where the user gave none.

A dataset that shuffles without a seed takes one from TensorFlow's global seed when it is made. If
that is the same on all workers, so are the batches, as the strategy is built before the data.
"""

from __future__ import annotations

import random

import tensorflow as tf
from tensorflow.python.eager import context

from tfdist.collectives.process_group import ProcessGroup

_UNSET = -1


def agree_on_seed(group: ProcessGroup) -> None:
    """Sets TensorFlow's global seed to the chief's on the workers that have none.

    The chief draws one where it has none itself. A worker that was given one keeps it. All
    workers must call it at the same point.

    Args:
        group: The workers.
    """
    if group.layout.workers == 1:
        return
    own = context.global_seed()
    seed = random.SystemRandom().randrange(2**31) if own is None else int(own)
    chiefs = group.exchange(seed if group.is_chief else _UNSET)[0]
    if own is None:
        tf.random.set_seed(chiefs)
