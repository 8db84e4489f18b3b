"""Memory that the workers of one host have in common, for sums without sending.

A worker allocates pieces of anonymous memory (`memfd_create`), and the others map them through
`/proc/PID/fd`: only processes of the same user on the same host can, nothing has a name that could
be left behind, and the kernel frees a piece when its last user has ended, however that ends. Where
a piece is, and when it may be read, the workers report over the ring's connections.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import struct
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# Process, its oldest piece, then of one piece: file descriptor, number, size, a position in it.
_PLACE = struct.Struct("<IQIQQQ")
NOWHERE = bytes(_PLACE.size)
_NONCE_BYTES = 32
# Pieces of a peer that stay mapped; a worker uses a few of each size.
_MOST_MAPPED = 8


class _Piece(NamedTuple):
    """A piece of memory of this worker.

    Attributes:
        number: Its number, which no other piece of this process has had.
        file: The descriptor of its memory.
        address: Where it begins.
        size: Its bytes.
    """

    number: int
    file: int
    address: int
    size: int


class CommonMemory:
    """One worker's pieces of memory, and its view of the other workers'."""

    def __init__(self) -> None:
        self._pieces: dict[int, _Piece] = {}
        self._latest = 0
        self._mapped: dict[int, OrderedDict[int, np.ndarray]] = {}

    def allocate(self, size: int) -> np.ndarray:
        """Returns `size` bytes that the other workers can map, or plain memory if there are none.

        They begin at a page of memory.
        """
        try:
            file = os.memfd_create("tfdist", os.MFD_CLOEXEC)
        except OSError:
            return np.empty(size, np.uint8)
        try:
            os.ftruncate(file, size)
            memory = np.frombuffer(mmap.mmap(file, size), np.uint8)
        except (OSError, ValueError):
            os.close(file)
            return np.empty(size, np.uint8)
        self._latest += 1
        number = self._latest
        self._pieces[number] = _Piece(number, file, memory.ctypes.data, size)
        weakref.finalize(memory, self._forget, number)
        return memory

    def place(self, array: np.ndarray) -> bytes:
        """Returns where others find an array; `NOWHERE` if it is not in one of the pieces."""
        address = array.ctypes.data
        for piece in tuple(self._pieces.values()):
            offset = address - piece.address
            if offset >= 0 and offset + array.nbytes <= piece.size:
                return _PLACE.pack(
                    *(os.getpid(), min(self._pieces)),
                    *(piece.file, piece.number, piece.size, offset),
                )
        return NOWHERE

    def view(self, rank: int, place: bytes, like: np.ndarray) -> np.ndarray:
        """Returns another worker's array, of the type and size of `like`.

        Args:
            rank: That worker.
            place: What its `place` returned.
            like: This worker's own array.

        Raises:
            OSError: It cannot be mapped.
        """
        process, oldest, file, number, size, offset = _PLACE.unpack(place)
        mapped = self._mapped.setdefault(rank, OrderedDict())
        for other in [each for each in mapped if each < oldest]:
            del mapped[other]  # Its owner freed it; this mapping would keep it in memory.
        memory = mapped.get(number)
        if memory is None:
            memory = mapped[number] = _map(process, file, size)
            if len(mapped) > _MOST_MAPPED:
                mapped.popitem(last=False)
        else:
            mapped.move_to_end(number)
        return memory[offset : offset + like.nbytes].view(like.dtype)

    def reaches_all(self, exchange: Callable[[np.ndarray], list[np.ndarray]]) -> bool:
        """Finds out whether every worker can map the memory of every other one.

        All workers must call it at the same point; they get the same answer.

        Args:
            exchange: Gathers arrays of bytes from all workers, by rank.
        """
        nonce = np.frombuffer(secrets.token_bytes(_NONCE_BYTES), np.uint8)
        piece = self.allocate(_NONCE_BYTES)
        piece[:] = nonce
        messages = exchange(np.concatenate([nonce, np.frombuffer(self.place(piece), np.uint8)]))
        found = np.ones(1, np.uint8)
        for rank, message in enumerate(messages):
            theirs, place = message[:_NONCE_BYTES], message[_NONCE_BYTES:].tobytes()
            # On another host that number is another process, or none.
            seen = np.zeros(0, np.uint8)
            if place != NOWHERE:
                with contextlib.suppress(OSError, ValueError):
                    seen = self.view(rank, place, piece)
            if not np.array_equal(seen, theirs):
                found[0] = 0
        # No piece is freed before all workers have looked at it.
        return all(int(answer[0]) for answer in exchange(found))

    def _forget(self, number: int) -> None:
        os.close(self._pieces.pop(number).file)


def _map(process: int, file: int, size: int) -> np.ndarray:
    """Maps the memory of another process, to read it."""
    # On another host that may be anything, even a FIFO that nobody writes to, whose opening waits.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(f"/proc/{process}/fd/{file}", flags)
    try:
        if os.fstat(descriptor).st_size != size:
            raise OSError(f"process {process} has no memory of {size} bytes there")
        return np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(descriptor)
