"""Replica contexts that stand in for a strategy's own while Keras' code runs."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.training.reduction import all_reduce


class OneReplicaView(tf.distribute.ReplicaContext):
    """A replica context in which Keras sees one device, yet collectives reach all replicas.

    The strategy it names is TensorFlow's default one (one replica), so Keras does not
    scale losses; `all_reduce`, which synchronized BatchNormalization calls, goes to the
    replica context it stands in for.

    Args:
        real: That replica context.
        count: How many examples this replica has; with none, it adds nothing to the sums.
    """

    def __init__(self, real: tf.distribute.ReplicaContext, count: tf.Tensor) -> None:
        super().__init__(_DEFAULT_STRATEGY, real.replica_id_in_sync_group)
        # Which copy of a variable is read here; the default strategy knows of one only.
        self._local_replica_id = real._local_replica_id
        self._real = real
        self._count = count

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Reduces over the replicas of the real strategy; the gradient is reduced likewise."""

        def total(tensors: Sequence[tf.Tensor]) -> Any:
            own = [tf.where(self._count > 0, t, tf.zeros_like(t)) for t in tensors]
            # tf.custom_gradient searches the graph behind its results for variables. The search
            # ends here, instead of going through the graphs of all replicas at every call.
            own = [tf.stop_gradient(t) for t in own]
            with inside(self._real):
                return all_reduce(self._real, reduce_op, own, options)

        @tf.custom_gradient
        def reduce(*tensors: tf.Tensor) -> Any:
            return total(tensors), lambda *upstream: total(upstream)

        flat = tf.nest.flatten(value)
        return tf.nest.pack_sequence_as(value, tf.nest.flatten(reduce(*flat)))

    def merge_call(self, merge_fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls `merge_fn` in the real strategy's cross-replica context."""
        with inside(self._real):
            return self._real.merge_call(merge_fn, args, kwargs)


class ReducedView(tf.distribute.ReplicaContext):
    """A replica context for an optimizer whose gradients are already reduced.

    Keras' optimizer sums the gradients with `all_reduce`; here that returns them as they are.
    """

    def __init__(self, real: tf.distribute.ReplicaContext) -> None:
        super().__init__(real.strategy, real.replica_id_in_sync_group)
        self._real = real

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Returns `value`: it has been reduced."""
        del reduce_op, options
        return value

    def merge_call(self, merge_fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls `merge_fn` in the real strategy's cross-replica context."""
        with inside(self._real):
            return self._real.merge_call(merge_fn, args, kwargs)


def _default_strategy() -> tf.distribute.Strategy:
    """TensorFlow's default strategy, also where this module is first imported in a scope.

    The scope is the importing thread's; another thread is in none.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(tf.distribute.get_strategy).result()


_DEFAULT_STRATEGY = _default_strategy()


@contextlib.contextmanager
def inside(context: tf.distribute.ReplicaContext) -> Iterator[None]:
    """Makes a context current that a view stands in for, though it was entered before.

    A replica context keeps what `tf.summary` is to go back to when it is left; entered twice, it
    would go back to itself, and summaries would be looked for in a graph that is gone.
    """
    name = "_summary_recording_distribution_strategy"
    kept = getattr(context, name, None)
    with context:
        yield
    setattr(context, name, kept)
