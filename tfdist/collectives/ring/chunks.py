"""Views of arrays as bytes, and the chunks in which they travel."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tfdist.collectives.ring.stream import Part

# The unit of sending, passing on and adding.
CHUNK_BYTES = 1 << 20


def flat_view(array: np.ndarray) -> np.ndarray:
    """Returns the array in one dimension, sharing its memory."""
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
