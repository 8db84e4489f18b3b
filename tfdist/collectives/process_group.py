"""Finds this process's place among those that train together, and exchanges values with them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.collectives.layout import ReplicaLayout
from tfdist.collectives.peer_errors import out_of_step
from tfdist.collectives.ring.ring import Ring
from tfdist.collectives.tensorflow import TensorFlowTransport
from tfdist.keras_internals import global_seed

_BROADCAST_BYTES = 16 << 20
_NO_SEED = -1

# What `ProcessGroup.call` is while no call runs.
NO_CALL = "no call"
# Characters of a call's name, as one number of 64 bits carries it.
_CALL_CHARS = 8


class ProcessGroup:
    """The processes of a strategy, and this one's place among them.

    Args:
        strategy: Any `tf.distribute.Strategy`, made by tfdist or by hand.
        is_synchronous: Whether its replicas step together; else this is the process that
            hands out the work.

    Attributes:
        is_chief: Whether this process prints and writes files.
        has_peers: Whether other processes take part.
        task: This process, as `worker/0`.
        layout: The replicas it holds.
        tasks: The processes that train together, as `worker/0`, in their order; empty for one.
        call: The name of the call that runs, of at most 8 ASCII characters, set by its owner;
            every exchange compares it.
        ring: This process's place in the workers' ring, None where they have none. Values are
            then exchanged over it too, as it detects a lost peer at once.
    """

    def __init__(self, strategy: tf.distribute.Strategy, *, is_synchronous: bool = True) -> None:
        self._strategy = strategy
        resolver = getattr(strategy, "cluster_resolver", None)
        tasks: list[tuple[str, int]] = []
        if is_synchronous and resolver is not None and resolver.cluster_spec():
            jobs = resolver.cluster_spec().as_dict()
            tasks = [(job, i) for job in ("chief", "worker") for i in range(len(jobs.get(job, ())))]
        replicas = strategy.num_replicas_in_sync if is_synchronous else 1
        if resolver is not None and len(tasks) > 1:
            worker = tasks.index((resolver.task_type, resolver.task_id))
            self.layout = ReplicaLayout(worker, len(tasks), replicas // len(tasks), replicas)
        else:
            self.layout = ReplicaLayout(0, 1, replicas, replicas)
        self.tasks = [f"{job}/{index}" for job, index in tasks]
        self.ring: Ring | None = None
        self.call = NO_CALL
        self.is_chief = self.layout.worker == 0
        self.has_peers = not is_synchronous or len(tasks) > 1
        self.task = "this process" if is_synchronous else "chief/0"
        if resolver is not None and resolver.task_type:
            self.task = f"{resolver.task_type}/{resolver.task_id}"
        self._transport = TensorFlowTransport(replicas)
        self._sum_of_workers = tf.function(self._sum, autograph=False)
        self._from_first = tf.function(self._broadcast, autograph=False)
        self._barrier: Any = None

    def exchange(self, value: int) -> list[int]:
        """Sends `value` to every worker; returns all workers' values, in their order.

        All workers must call it at the same point.

        Raises:
            OutOfStepError: They are in different calls.
        """
        if self.layout.workers == 1:
            return [value]
        own = np.array([value, _encode(self.call)], np.int64)
        if self.ring is not None:
            rows = np.array(self.ring.all_gather(own))
        else:
            mine = np.zeros((self.layout.workers, 2), np.int64)
            mine[self.layout.worker] = own
            rows = self._sum_of_workers(tf.constant(mine)).numpy()
        calls = [_decode(number) for number in rows[:, 1]]
        if len(set(calls)) > 1:
            named = ", ".join(f"{t} {call}" for t, call in zip(self.tasks, calls, strict=True))
            raise out_of_step(self.task, named)
        return [int(v) for v in rows[:, 0]]

    def agree_on_seed(self) -> None:
        """Sets TensorFlow's global seed to the chief's on the workers that have none.

        A dataset that shuffles without a seed derives one from the global seed when it is made: if
        that is the same on all workers, so are the batches. The chief draws a seed if it has none;
        a worker that has one keeps it. All workers must call it at the same point.
        """
        if self.layout.workers == 1:
            return
        own = global_seed()
        seed = random.SystemRandom().randrange(2**31) if own is None else int(own)
        chiefs = self.exchange(seed if self.is_chief else _NO_SEED)[0]
        if own is None:
            tf.random.set_seed(chiefs)

    def prepare_barrier(self) -> None:
        """Traces the function that `barrier` runs, as none can be traced while Python exits."""
        if self.layout.workers > 1 and self._barrier is None:
            spec = tf.TensorSpec([self.layout.workers], tf.int64)
            self._barrier = self._sum_of_workers.get_concrete_function(spec)

    def barrier(self) -> None:
        """Waits until all workers have reached it; call `prepare_barrier` first."""
        if self._barrier is not None:
            self._barrier(tf.zeros([self.layout.workers], tf.int64))

    def broadcast(self, data: bytes) -> bytes:
        """Sends bytes from the chief to every worker; returns the chief's.

        All workers must call it at the same point; the others' values are ignored.
        """
        if self.layout.workers == 1:
            return data
        size = self.exchange(len(data))[0]
        whole = np.frombuffer(data, np.uint8).copy() if self.is_chief else np.empty(size, np.uint8)
        self.broadcast_into(whole)
        return whole.tobytes()

    def broadcast_into(self, buffer: np.ndarray) -> None:
        """Sends the chief's bytes to every worker, into a buffer of the same size.

        All workers must call it at the same point.

        Args:
            buffer: Bytes (uint8, one dimension): the chief's, or room for them.
        """
        if self.layout.workers == 1 or not buffer.size:
            return
        if self.ring is not None:
            self.ring.broadcast(buffer)
            return
        for start in range(0, buffer.size, _BROADCAST_BYTES):
            piece = buffer[start : start + _BROADCAST_BYTES]
            # Integers, so that nothing is rounded.
            numbers = np.zeros(-(-piece.size // 8), np.int64)
            if self.is_chief:
                numbers.view(np.uint8)[: piece.size] = piece
            received = self._from_first(tf.constant(numbers)).numpy()
            piece[:] = received.view(np.uint8)[: piece.size]

    def gather(self, data: bytes, size: int) -> list[bytes]:
        """Sends `data` to every worker; returns all workers' data, in their order.

        All workers must call it at the same point, with the same size.

        Args:
            data: Bytes, of which the last is not zero; empty for nothing.
            size: The most that any worker sends.
        """
        if self.layout.workers == 1:
            return [data]
        if self.ring is not None:
            parts = self.ring.all_gather(np.frombuffer(data, np.uint8))
            return [part.tobytes() for part in parts]
        padded = -(-size // 8) * 8
        mine = np.zeros((self.layout.workers, padded // 8), np.int64)
        mine[self.layout.worker] = np.frombuffer(data.ljust(padded, b"\0"), np.int64)
        rows = self._sum_of_workers(tf.constant(mine)).numpy()
        return [row.tobytes().rstrip(b"\0") for row in rows]

    def _sum(self, mine: tf.Tensor) -> tf.Tensor:
        def replica() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            number = tf.cast(context.replica_id_in_sync_group, tf.int32)
            first = tf.cast(tf.equal(number, self.layout.first), tf.int64)
            return self._transport.sum([mine * first])[0]

        return self._strategy.experimental_local_results(self._strategy.run(replica))[0]

    def _broadcast(self, mine: tf.Tensor) -> tf.Tensor:
        def replica() -> tf.Tensor:
            return self._transport.broadcast([mine])[0]

        return self._strategy.experimental_local_results(self._strategy.run(replica))[0]


def _encode(call: str) -> int:
    """Returns the name of a call as a number; the first bit is 0, as in all of ASCII."""
    return int.from_bytes(call.encode("ascii").ljust(_CALL_CHARS, b"\0"), "big")


def _decode(number: int) -> str:
    return int(number).to_bytes(_CALL_CHARS, "big").rstrip(b"\0").decode("ascii")
