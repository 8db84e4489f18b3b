"""Builds `MultiWorkerMirroredStrategy`; all of a process' share one connection to its peers.

TensorFlow connects anew for each, which ends the collectives that other workers are in, and gives
all the same keys: workers that do not build their second strategy at the same instant fail with
`InternalError` or take each other's values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

# More than the groups of devices that any strategy has, of which each takes a key.
_KEYS_EACH = 100_000

_connected_to: set[str] = set()
_next_key = 0


def connect(
    cluster: str,
    resolver: tf.distribute.cluster_resolver.ClusterResolver,
    options: tf.distribute.experimental.CommunicationOptions,
) -> tf.distribute.Strategy:
    """Builds the strategy, and connects to the other workers unless this process has before.

    All workers must build the same number of strategies.

    Args:
        cluster: Text that tells clusters, and tasks of them, apart.
        resolver: Tells TensorFlow of the cluster.
        options: How its collectives communicate.
    """
    global _next_key
    build = tf.distribute.MultiWorkerMirroredStrategy
    with _set(build, "_collective_key_base", _next_key):
        if cluster in _connected_to:
            # As TensorFlow leaves both after it has connected.
            with (
                _set(CollectiveAllReduceExtended, "_std_server_started", True),
                _set(CollectiveAllReduceExtended, "_enable_check_health", False),
            ):
                strategy = build(cluster_resolver=resolver, communication_options=options)
        else:
            strategy = build(cluster_resolver=resolver, communication_options=options)
    _next_key += _KEYS_EACH
    _connected_to.add(cluster)
    return strategy


@contextmanager
def _set(owner: type, name: str, value: object) -> Iterator[None]:
    """Gives an attribute of a class a value for a while."""
    had = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
