"""Sends arrays, in chunks, to the next worker of a ring while receiving from the previous one.

Messages are followed by their checksums, and none of these is used before that was compared: what a
broken machine has changed on the way is neither added nor passed on, and ends the job. Small ones,
and headers, always are; large ones where `checks_all` is set.

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

from tfdist.collectives.ring.checksum import CHECKSUM_BYTES, checksum
from tfdist.collectives.ring.monitor import RingMonitor

# The unit of sending, passing on and adding: no message is larger.
CHUNK_BYTES = 1 << 20
# Small messages are sent together, as each would wake the neighbour.
_SMALL = 64 << 10

# The memory to receive a part in, and what to call once the part is complete.
Part = tuple[memoryview, Callable[[], None] | None]


class Stream:
    """The two connections for data.

    Args:
        to_next: To the next worker.
        from_previous: From the previous one.
        monitor: Knows why a connection ended.

    Attributes:
        checks_all: Whether large messages have checksums too. The same on all workers.
    """

    def __init__(
        self, to_next: socket.socket, from_previous: socket.socket, monitor: RingMonitor
    ) -> None:
        self._out, self._in, self._monitor = to_next, from_previous, monitor
        for connection in (to_next, from_previous):
            connection.setblocking(False)
        self.checks_all = False
        self._sending: deque[memoryview] = deque()  # Messages under way, and their checksums.
        self._checksum = bytearray(CHECKSUM_BYTES)  # Of the message that is being received.
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
            outgoing: The messages to send. The action of a received part may append to it.
            incoming: The parts to receive, in order, each a message of the previous worker.
            finish: Whether to return only when all is sent. Must be False if more is to be
                received later: otherwise all workers could wait for the next one to read.

        Raises:
            RingError: A worker was lost, or what it sent was changed on the way.
        """
        part = next(incoming, None)
        rooms = self._rooms(part)
        while part is not None or (finish and (outgoing or self._sending)):
            moved = False
            if outgoing or self._sending:
                moved = self._send(outgoing)
            if part is not None:
                # An empty part is complete at once.
                if rooms:
                    moved = self._receive(rooms) or moved
                if not rooms:
                    moved = True
                    data, done = part
                    if self._has_checksum(data) and checksum(data) != self._checksum:
                        raise self._monitor.damaged()
                    if done is not None:
                        done()
                    part = next(incoming, None)
                    rooms = self._rooms(part)
            if not moved:
                self._monitor.waits_for_next = part is None
                self._wait(bool(outgoing or self._sending), part is not None)

    def _rooms(self, part: Part | None) -> deque[memoryview]:
        """Returns the memory that a part and its checksum are to fill."""
        data = memoryview(b"") if part is None else part[0]
        if not len(data):
            return deque()
        return deque([data, memoryview(self._checksum)] if self._has_checksum(data) else [data])

    def _has_checksum(self, message: memoryview) -> bool:
        return len(message) > 0 and (self.checks_all or len(message) <= _SMALL)

    def _wait(self, sends: bool, receives: bool) -> None:
        if sends and receives:
            self._both.poll()
        elif receives:
            self._only_in.poll()
        else:
            self._only_out.poll()

    def _send(self, outgoing: deque[memoryview]) -> bool:
        """Sends what the kernel takes; returns whether it has taken anything."""
        sending = self._sending
        while outgoing and sum(map(len, sending)) < _SMALL:
            message = outgoing.popleft()
            sending.append(message)
            if self._has_checksum(message):
                sending.append(memoryview(checksum(message)))
        if not sending:
            return True
        try:
            count = self._out.sendmsg(sending)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise self._monitor.failed(True, error.strerror or str(error)) from None
        _advance(sending, count)
        return True

    def _receive(self, rooms: deque[memoryview]) -> bool:
        """Receives what has come, into `rooms`; returns whether anything has."""
        try:
            count = self._in.recvmsg_into(rooms)[0]
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise self._monitor.failed(False, error.strerror or str(error)) from None
        if count == 0:
            raise self._monitor.failed(False, "it closed the connection")
        _advance(rooms, count)
        return True


def _advance(pieces: deque[memoryview], count: int) -> None:
    """Removes the first bytes of pieces of memory."""
    while pieces and count >= len(pieces[0]):
        count -= len(pieces.popleft())
    if count:
        pieces[0] = pieces[0][count:]


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
