"""Which strategy this process has built, for those who find a model made outside of it."""

from __future__ import annotations

import weakref

import tensorflow as tf

_newest: weakref.ReferenceType[tf.distribute.Strategy] | None = None


def note(strategy: tf.distribute.Strategy) -> tf.distribute.Strategy:
    """Remembers a strategy while anyone holds it; returns it."""
    global _newest
    _newest = weakref.ref(strategy)
    return strategy


def of_several_replicas() -> tf.distribute.Strategy | None:
    """The strategy built last, where it is still held and has several replicas."""
    strategy = _newest() if _newest is not None else None
    return strategy if strategy is not None and strategy.num_replicas_in_sync > 1 else None
