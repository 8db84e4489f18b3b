"""Remembers the strategy built last, to detect a model made outside of its scope."""

from __future__ import annotations

import weakref

import tensorflow as tf

_newest: weakref.ReferenceType[tf.distribute.Strategy] | None = None


def note(strategy: tf.distribute.Strategy) -> tf.distribute.Strategy:
    """Remembers a strategy by a weak reference; returns it."""
    global _newest
    _newest = weakref.ref(strategy)
    return strategy


def of_several_replicas() -> tf.distribute.Strategy | None:
    """Returns the strategy built last if it still exists and has several replicas, else None."""
    strategy = _newest() if _newest is not None else None
    return strategy if strategy is not None and strategy.num_replicas_in_sync > 1 else None
