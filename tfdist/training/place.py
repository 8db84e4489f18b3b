"""Where this process stands among those that train: its share, and how they agree."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdist.training.share import Share

_PARAMETER_SERVER = (
    tf.distribute.ParameterServerStrategy,
    tf.distribute.experimental.ParameterServerStrategy,
)

_BROADCAST_BYTES = 16 << 20


class Place:
    """This process's place in a strategy.

    Args:
        strategy: Any `tf.distribute.Strategy`, made by tfdist or by hand.

    Attributes:
        is_parameter_server: Whether the strategy steps asynchronously, through a coordinator.
        is_chief: Whether this process prints and writes files.
        has_peers: Whether other processes take part.
        task: This process, as `worker/0`.
        share: The replicas it holds.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self.is_parameter_server = isinstance(strategy, _PARAMETER_SERVER)
        resolver = getattr(strategy, "cluster_resolver", None)
        tasks: list[tuple[str, int]] = []
        if not self.is_parameter_server and resolver is not None and resolver.cluster_spec():
            jobs = resolver.cluster_spec().as_dict()
            tasks = [(job, i) for job in ("chief", "worker") for i in range(len(jobs.get(job, ())))]
        replicas = 1 if self.is_parameter_server else strategy.num_replicas_in_sync
        if resolver is not None and len(tasks) > 1:
            worker = tasks.index((resolver.task_type, resolver.task_id))
            self.share = Share(worker, len(tasks), replicas // len(tasks), replicas)
        else:
            self.share = Share(0, 1, replicas, replicas)
        self.is_chief = self.share.worker == 0
        self.has_peers = self.is_parameter_server or len(tasks) > 1
        self.task = "this process"
        if resolver is not None and resolver.task_type:
            self.task = f"{resolver.task_type}/{resolver.task_id}"
        self._all_reduce = tf.function(self._sum, autograph=False)

    def exchange(self, value: int) -> list[int]:
        """Tells every worker `value`; returns all workers' values, in their order.

        All workers must call it at the same point.
        """
        if self.share.workers == 1:
            return [value]
        mine = tf.one_hot(self.share.worker, self.share.workers, dtype=tf.int64) * value
        return [int(v) for v in self._all_reduce(mine)]

    def broadcast(self, data: bytes) -> bytes:
        """Sends bytes from the chief to every worker; returns the chief's.

        All workers must call it at the same point; what the others give is left aside.
        """
        if self.share.workers == 1:
            return data
        size = self.exchange(len(data))[0]
        # Whole numbers, so that nothing is rounded: the other workers add zeros.
        own = data if self.is_chief else b""
        pieces = []
        for start in range(0, size, _BROADCAST_BYTES):
            length = min(_BROADCAST_BYTES, size - start)
            padded = -(-length // 8) * 8
            numbers = np.frombuffer(own[start : start + length].ljust(padded, b"\0"), np.int64)
            pieces.append(self._all_reduce(tf.constant(numbers)).numpy().tobytes()[:length])
        return b"".join(pieces)

    def _sum(self, mine: tf.Tensor) -> tf.Tensor:
        def replica() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            number = tf.cast(context.replica_id_in_sync_group, tf.int32)
            first = tf.cast(tf.equal(number, self.share.first), tf.int64)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, mine * first)

        return self._strategy.experimental_local_results(self._strategy.run(replica))[0]
