"""Sends arrays, in chunks, to the next worker of a ring while receiving from the previous one.

Both happen in one thread. A second one for sending would help only where a worker has idle cores:
waking it costs more than a small message, and on one core a loop over two non-blocking sockets is
as fast.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from tfdist.collectives.ring.monitor import RingMonitor

# The unit of sending, passing on and adding.
CHUNK_BYTES = 1 << 20

# The memory to receive a part in, and what to call once the part is complete.
Part = tuple[memoryview, Callable[[], None] | None]


class Stream:
    """The two connections for data.

    Args:
        to_next: To the next worker.
        from_previous: From the previous one.
        monitor: Knows why a connection ended.
    """

    def __init__(
        self, to_next: socket.socket, from_previous: socket.socket, monitor: RingMonitor
    ) -> None:
        self._out, self._in, self._monitor = to_next, from_previous, monitor
        for connection in (to_next, from_previous):
            connection.setblocking(False)
        self._both, self._only_in, self._only_out = select.poll(), select.poll(), select.poll()
        for poll in (self._both, self._only_in):
            poll.register(from_previous, select.POLLIN)
        for poll in (self._both, self._only_out):
            poll.register(to_next, select.POLLOUT)

    def run(
        self, outgoing: deque[memoryview], incoming: Iterator[Part], *, finish: bool = True
    ) -> None:
        """Sends `outgoing` and receives all of `incoming`.

        Args:
            outgoing: The data to send. The action of a received part may append to it.
            incoming: The parts to receive, in order.
            finish: Whether to return only when all is sent. Must be False if more is to be
                received later: otherwise all workers could wait for the next one to read.

        Raises:
            RingError: A worker was lost.
        """
        monitor = self._monitor
        part = next(incoming, None)
        target, done = part if part is not None else (memoryview(b""), None)
        while part is not None or (finish and outgoing):
            moved = False
            if outgoing:
                moved = self._send(outgoing)
            if part is not None:
                # An empty part is complete at once.
                if len(target):
                    count = self._receive(target)
                    target = target[count:]
                    moved = moved or count > 0
                if not len(target):
                    moved = True
                    if done is not None:
                        done()
                    part = next(incoming, None)
                    target, done = part if part is not None else (memoryview(b""), None)
            if not moved:
                monitor.waits_for_next = part is None
                self._wait(bool(outgoing), part is not None)

    def _wait(self, sends: bool, receives: bool) -> None:
        if sends and receives:
            self._both.poll()
        elif receives:
            self._only_in.poll()
        else:
            self._only_out.poll()

    def _send(self, outgoing: deque[memoryview]) -> bool:
        first = outgoing[0]
        if not len(first):
            outgoing.popleft()
            return True
        try:
            count = self._out.send(first)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise self._monitor.failed(True, error.strerror or str(error)) from None
        if count == len(first):
            outgoing.popleft()
        else:
            outgoing[0] = first[count:]
        return True

    def _receive(self, target: memoryview) -> int:
        try:
            count = self._in.recv_into(target)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._monitor.failed(False, error.strerror or str(error)) from None
        if count == 0:
            raise self._monitor.failed(False, "it closed the connection")
        return count


def flat_view(array: np.ndarray) -> np.ndarray:
    """Returns the array in one dimension, sharing its memory.

    Raises:
        ValueError: It is not contiguous.
    """
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous")
    return array.reshape(-1)


def as_bytes(array: np.ndarray) -> memoryview:
    """Returns the memory of an array of one dimension."""
    return array.view(np.uint8).data


def room_for(memory: np.ndarray, size: int) -> np.ndarray:
    """Returns `memory` if it has at least `size` bytes, else new memory."""
    return memory if memory.nbytes >= size else np.empty(size, np.uint8)


def in_chunks(piece: np.ndarray, then: Callable[[memoryview], None] | None) -> Iterator[Part]:
    """Yields the chunks to receive an array in, each with its action."""
    data = as_bytes(piece)
    for start in range(0, len(data), CHUNK_BYTES):
        chunk = data[start : start + CHUNK_BYTES]

        def done(chunk: memoryview = chunk) -> None:
            if then is not None:
                then(chunk)

        yield chunk, done
