"""Remembers the strategies that this process has built: their connection, and the newest one.

All `MultiWorkerMirroredStrategy` of a process share one connection to its peers. TensorFlow
connects again for each, which ends the collectives that other workers are in, and gives all the
same keys: workers that do not build their second strategy at the same instant fail with
`InternalError` or take each other's values. To another cluster than its first a process cannot
connect at all: TensorFlow would wait without end. The newest strategy is remembered to detect a
model that was made outside of its scope.
"""

from __future__ import annotations

import contextlib
import weakref

import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.keras_internals import already_connected, collective_keys_from

# More than the groups of devices that any strategy has, of which each takes a key.
_KEYS_EACH = 100_000

_connected_to: Cluster | None = None
_next_key = 0
_newest: weakref.ReferenceType[tf.distribute.Strategy] | None = None


def check_same_cluster(cluster: Cluster) -> None:
    """Checks that this process has not joined another cluster, or this one as another task.

    Raises:
        ConfigError: It has, as a process of Ray or Spark that is used again may.
    """
    first = _connected_to
    if first is None or first == cluster:
        return
    raise ConfigError(
        f"cluster: this process is {first.task} at {first.task.address} already, and cannot be "
        f"{cluster.task} at {cluster.task.address} as well: TensorFlow joins one cluster a "
        "process; start a new process for each (Ray: new actors, or max_calls=1; Spark: "
        "spark.python.worker.reuse=false)"
    )


def connect(
    cluster: Cluster,
    resolver: tf.distribute.cluster_resolver.ClusterResolver,
    options: tf.distribute.experimental.CommunicationOptions,
) -> tf.distribute.Strategy:
    """Builds a `MultiWorkerMirroredStrategy`; connects to its peers unless this process has before.

    All workers must build the same number of strategies.

    Args:
        cluster: The cluster of this task.
        resolver: Describes the cluster to TensorFlow.
        options: The communication options of its collectives.

    Raises:
        ConfigError: This process has connected to another cluster.
    """
    global _next_key, _connected_to
    check_same_cluster(cluster)
    build = tf.distribute.MultiWorkerMirroredStrategy
    connection = already_connected() if _connected_to else contextlib.nullcontext()
    with collective_keys_from(_next_key), connection:
        strategy = build(cluster_resolver=resolver, communication_options=options)
    _next_key += _KEYS_EACH
    _connected_to = cluster
    return strategy


def remember_strategy(strategy: tf.distribute.Strategy) -> tf.distribute.Strategy:
    """Remembers the newest strategy, by a weak reference; returns it."""
    global _newest
    _newest = weakref.ref(strategy)
    return strategy


def newest_of_several_replicas() -> tf.distribute.Strategy | None:
    """Returns the newest strategy if it still exists and has several replicas, else None."""
    strategy = _newest() if _newest is not None else None
    return strategy if strategy is not None and strategy.num_replicas_in_sync > 1 else None
