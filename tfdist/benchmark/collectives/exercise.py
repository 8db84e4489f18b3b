"""One operation of one transport at one size: its input, its call, the check of its result.

The arrays are float32 and hold whole numbers which 16-bit types hold exactly, as they do the sums,
so every result is checked for equality. (With 85 or more workers, 16-bit sums are rounded.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.benchmark.collectives.cells import ALL_REDUCE, MEMORY, Cell
from tfdist.benchmark.collectives.sockets import RawSocket
from tfdist.collectives.ring.ring import Ring
from tfdist.collectives.tensorflow import TensorFlowTransport
from tfdist.collectives.transport_names import TENSORFLOW, narrow_type

_ROOT = 0
# bfloat16 holds all whole numbers up to it.
_EXACT = 256
_OFFSETS = 3


@dataclass(frozen=True)
class Exercise:
    """A call that can be repeated.

    Attributes:
        size: Bytes of the whole array, as nccl-tests count them.
        fill: Prepares the input, before the clock starts.
        call: The call; returns its result.
        is_right: Whether a result is right, after the clock has stopped.
    """

    size: int
    fill: Callable[[], None]
    call: Callable[[], Any]
    is_right: Callable[[Any], bool]


class Numbers:
    """Whole numbers that differ by place and worker, and their sums.

    Args:
        workers: The number of workers.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._span = max(2, _EXACT // workers - _OFFSETS + 1)
        self.exact = workers * (self._span + _OFFSETS - 2) <= _EXACT

    def of(self, rank: int, count: int) -> np.ndarray:
        """Returns a worker's numbers: float32 of shape (count,)."""
        return np.resize(np.arange(self._span, dtype=np.float32) + rank % _OFFSETS, count)

    def total(self, count: int) -> np.ndarray:
        """Returns the sum of all workers' numbers: float32 of shape (count,)."""
        offsets = sum(rank % _OFFSETS for rank in range(self._workers))
        period = self._workers * np.arange(self._span, dtype=np.float32) + offsets
        return np.resize(period.astype(np.float32), count)


def of_ring(ring: Ring, cell: Cell, size: int) -> Exercise:
    """Returns an operation of tfdist's ring.

    Args:
        ring: The ring.
        cell: The operation, over connections or in shared memory, and the type on the wire.
        size: Bytes of the whole array, about: it is divided evenly among the workers.
    """
    rank, workers = ring.rank, ring.size
    each = max(1, size // 4 // workers)
    whole = each * workers
    numbers = Numbers(workers)

    if cell.operation in (ALL_REDUCE, "reduce_scatter"):
        own, total = numbers.of(rank, whole), numbers.total(whole)
        array = _memory(ring, whole, cell.transport == MEMORY)
        segment = ring.segment(whole, 4, rank)
        wire = narrow_type(cell.wire_type)
        in_memory = cell.transport == MEMORY
        is_exact = wire is None or numbers.exact

        wanted_sum = total if cell.operation == ALL_REDUCE else total[segment]

        def reduce() -> np.ndarray:
            if cell.operation == ALL_REDUCE:
                ring.all_reduce(array, wire, in_memory=in_memory)
                return array
            return ring.reduce_scatter(array)

        return Exercise(
            4 * whole,
            lambda: np.copyto(array, own),
            reduce,
            lambda found: _same(found, wanted_sum, is_exact, workers),
        )

    if cell.operation == "broadcast":
        array, wanted = np.zeros(whole, np.float32), numbers.of(_ROOT, whole)

        def broadcast() -> np.ndarray:
            ring.broadcast(array, _ROOT)
            return array

        return Exercise(
            4 * whole,
            lambda: np.copyto(array, wanted) if rank == _ROOT else array.fill(-1),
            broadcast,
            lambda found: np.array_equal(found, wanted),
        )

    if cell.operation == "scatter":
        parts = numbers.of(_ROOT, whole)
        piece = np.zeros(each, np.float32)

        def scatter() -> np.ndarray:
            ring.scatter(piece, parts if rank == _ROOT else None, _ROOT)
            return piece

        return Exercise(
            4 * whole,
            lambda: piece.fill(-1),
            scatter,
            lambda found: np.array_equal(found, parts[rank * each : (rank + 1) * each]),
        )

    own = numbers.of(rank, each)
    everyone = [numbers.of(other, each) for other in range(workers)]
    gathers = {"all_gather": lambda: ring.all_gather(own), "gather": lambda: ring.gather(own)}
    wanted_arrays = everyone if cell.operation == "all_gather" or rank == _ROOT else []
    return Exercise(
        4 * whole,
        lambda: None,
        gathers[cell.operation],
        lambda found: (
            len(found) == len(wanted_arrays)
            and all(np.array_equal(a, b) for a, b in zip(found, wanted_arrays, strict=True))
        ),
    )


def of_tensorflow(strategy: tf.distribute.Strategy, rank: int, cell: Cell, size: int) -> Exercise:
    """Returns an operation of TensorFlow's collectives, as the Trainer uses them.

    A broadcast is a sum to which the others add zeros.

    Args:
        strategy: A MultiWorkerMirroredStrategy.
        rank: This worker.
        cell: The operation, and the type on the wire.
        size: Bytes of the whole array, about.
    """
    workers = strategy.num_replicas_in_sync
    each = max(1, size // 4 // workers)
    whole = each * workers
    numbers = Numbers(workers)
    wire = narrow_type(cell.wire_type)
    transport = TensorFlowTransport(workers, wire_type=wire)
    own = tf.constant(numbers.of(rank, each if cell.operation == "all_gather" else whole))
    operations: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
        ALL_REDUCE: lambda value: transport.sum_gradients([value])[0],
        "all_gather": transport.gather,
        "broadcast": lambda value: transport.broadcast([value])[0],
    }
    wanted = {
        ALL_REDUCE: lambda: numbers.total(whole),
        "all_gather": lambda: np.concatenate([numbers.of(r, each) for r in range(workers)]),
        "broadcast": lambda: numbers.of(_ROOT, whole),
    }[cell.operation]()

    def replica(value: tf.Tensor) -> tf.Tensor:
        # An argument has no device yet, and the strategy asks for one.
        return operations[cell.operation](tf.identity(value))

    traced = tf.function(lambda value: strategy.run(replica, args=(value,)), autograph=False)
    run = traced.get_concrete_function(own)  # Traced before the clock starts.
    is_exact = wire is None or numbers.exact
    return Exercise(
        4 * whole,
        lambda: None,
        lambda: run(own),
        lambda found: _same(found.numpy(), wanted, is_exact, workers),
    )


def of_socket(raw: RawSocket, rank: int, workers: int, size: int) -> Exercise:
    """Returns an exchange of bytes with the neighbours over plain sockets.

    Args:
        raw: The sockets.
        rank: This worker.
        workers: The number of workers.
        size: Bytes to send, and to receive.
    """
    sent = np.resize(np.arange(251, dtype=np.uint8) + rank % 4, size)
    wanted = np.resize(np.arange(251, dtype=np.uint8) + (rank - 1) % workers % 4, size)
    received = np.zeros(size, np.uint8)

    def exchange() -> np.ndarray:
        raw.exchange(sent, received)
        return received

    return Exercise(
        size, lambda: received.fill(0), exchange, lambda found: np.array_equal(found, wanted)
    )


def uses_tensorflow(cell: Cell) -> bool:
    """Returns whether TensorFlow's own collectives carry a cell."""
    return cell.transport == TENSORFLOW


def _memory(ring: Ring, count: int, shared: bool) -> np.ndarray:
    if shared and ring.common is not None:
        return ring.common.allocate(4 * count).view(np.float32)
    return np.zeros(count, np.float32)


def _same(found: np.ndarray, wanted: np.ndarray, is_exact: bool, workers: int) -> bool:
    if is_exact:
        return np.array_equal(found, wanted)
    # Each worker rounds what it passes on to eight bits.
    return bool(np.allclose(found, wanted, rtol=workers * 2.0**-8))
