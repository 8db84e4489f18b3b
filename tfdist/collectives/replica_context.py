"""Replaces a strategy's replica context while Keras' code runs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.transport import Transport
from tfdist.keras_internals import summary_state_kept, take_local_number


class ContextProxy(tf.distribute.ReplicaContext):
    """A replica context that stands in for another, `real`, and has its replica number."""

    def __init__(self, strategy: Any, real: tf.distribute.ReplicaContext) -> None:
        super().__init__(strategy, real.replica_id_in_sync_group)
        self.real = real

    def snapshot(self) -> Callable[[], None]:
        """Saves the state that another replica might change; returns what restores it."""
        return lambda: None

    def merge_call(self, merge_fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls `merge_fn` in the real strategy's cross-replica context."""
        with restored_context() as real:
            return real.merge_call(merge_fn, args, kwargs)


class OneReplicaView(ContextProxy):
    """A replica context in which Keras sees one device, while collectives reach all replicas.

    Its strategy is TensorFlow's default one (one replica), so Keras does not scale
    losses; `all_reduce`, which synchronized BatchNormalization calls, uses the
    transport.

    Args:
        real: The replica context that it replaces.
        count: The number of examples of this replica; with 0, it adds nothing to the sums.
        transport: The transport that sums over the replicas.
        snapshot: Saves the Python state that the replicas of this process share, and returns a
            function that restores it; called before another replica runs.
    """

    def __init__(
        self,
        real: tf.distribute.ReplicaContext,
        count: tf.Tensor,
        transport: Transport,
        snapshot: Callable[[], Callable[[], None]] | None = None,
    ) -> None:
        super().__init__(_default_strategy(), real)
        # Selects the copy of a variable to read; the default strategy has only one.
        take_local_number(self, real)
        self._count = count
        self._transport = transport
        self._snapshot = snapshot

    @override
    def snapshot(self) -> Callable[[], None]:
        return super().snapshot() if self._snapshot is None else self._snapshot()

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Reduces over the replicas of the real strategy; the gradient is reduced likewise."""
        del options
        mean = reduce_op in (tf.distribute.ReduceOp.MEAN, "MEAN", "mean")

        def of_examples(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            """Replaces the values of an empty replica, which computed a padding row, by zeros."""
            return [tf.where(self._count > 0, t, tf.zeros_like(t)) for t in tensors]

        def total(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            # tf.custom_gradient searches the graph behind its results for variables. The search
            # ends here, instead of going through the graphs of all replicas at every call.
            own = [tf.stop_gradient(t) for t in of_examples(tensors)]
            sums = self._transport.sum(own)
            if not mean:
                return sums
            return [s / tf.cast(self._transport.replicas, s.dtype) for s in sums]

        @tf.custom_gradient
        def reduce(*tensors: tf.Tensor) -> Any:
            # Values left out of the sum have no gradient either.
            return total(tensors), lambda *upstream: of_examples(total(upstream))

        flat = tf.nest.flatten(value)
        return tf.nest.pack_sequence_as(value, tf.nest.flatten(reduce(*flat)))


class ReducedView(ContextProxy):
    """A replica context for an optimizer whose gradients are already reduced.

    Keras' optimizer sums the gradients with `all_reduce`, which returns them unchanged here.

    Args:
        real: The replica context that it replaces.
        across: Makes a context manager for the optimizer's calls in cross-replica context, which
            run in another thread than the replica and see none of its scopes.
    """

    def __init__(
        self,
        real: tf.distribute.ReplicaContext,
        across: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        super().__init__(real.strategy, real)
        self._across = across

    def merge_call(self, merge_fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls `merge_fn` in the real strategy's cross-replica context, within `across`."""

        def surrounded(*merged: Any, **named: Any) -> Any:
            with self._across():
                return merge_fn(*merged, **named)

        return super().merge_call(surrounded, args, kwargs)

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Returns `value`: it has been reduced."""
        del reduce_op, options
        return value


def real_context() -> tf.distribute.ReplicaContext:
    """Returns the strategy's own current replica context, even while another replaces it."""
    context = tf.distribute.get_replica_context()
    while isinstance(context, ContextProxy):
        context = context.real
    return context


@contextlib.contextmanager
def restored_context() -> Iterator[tf.distribute.ReplicaContext]:
    """Makes the strategy's own replica context current for a call that runs other replicas.

    The replicas of one process are threads that take turns in such a call, and share its objects:
    the state that each proxy saves before the call is restored after it.
    """
    context = tf.distribute.get_replica_context()
    restores = []
    while isinstance(context, ContextProxy):
        restores.append(context.snapshot())
        context = context.real
    with reenter(context):
        yield context
    for restore in restores:
        restore()


@contextlib.contextmanager
def reenter(context: tf.distribute.ReplicaContext) -> Iterator[None]:
    """Makes the context that a proxy replaces current again, though it was entered before.

    A replica context stores the state of `tf.summary` on entry, to restore it on exit; entered
    twice, it would restore its own state, and summaries would refer to a deleted graph.
    """
    with summary_state_kept(context), context:
        yield


@functools.cache
def _default_strategy() -> tf.distribute.Strategy:
    """Returns TensorFlow's default strategy, even in a scope: another thread is in none."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(tf.distribute.get_strategy).result()
