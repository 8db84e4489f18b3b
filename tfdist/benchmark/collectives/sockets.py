"""Sends bytes to the next worker and receives as many from the previous one, over plain TCP.

Each worker of a ring does the same, plus headers, additions and other calls: no ring over these
connections is faster.
"""

from __future__ import annotations

import select
import socket

import numpy as np

_CHUNK_BYTES = 1 << 20


class RawSocket:
    """The two connections of a worker.

    Args:
        to_next: To the next worker.
        from_previous: From the previous one.
    """

    def __init__(self, to_next: socket.socket, from_previous: socket.socket) -> None:
        self._out, self._in = to_next, from_previous
        for connection in (to_next, from_previous):
            connection.setblocking(False)

    def exchange(self, sent: np.ndarray, received: np.ndarray) -> None:
        """Sends one array while it receives another; all workers call it together.

        Args:
            sent: Bytes (uint8, one dimension).
            received: As many bytes, overwritten.

        Raises:
            ConnectionError: A neighbour closed its connection.
        """
        outgoing, incoming = sent.data, received.data
        while outgoing or incoming:
            readable, writable, _ = select.select(
                [self._in] if incoming else [], [self._out] if outgoing else [], []
            )
            if writable:
                outgoing = outgoing[self._out.send(outgoing[:_CHUNK_BYTES]) :]
            if readable:
                count = self._in.recv_into(incoming[:_CHUNK_BYTES])
                if not count:
                    raise ConnectionError("a neighbour closed its connection")
                incoming = incoming[count:]

    def close(self) -> None:
        """Closes both connections."""
        self._out.close()
        self._in.close()
