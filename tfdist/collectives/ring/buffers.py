"""Memory that is used again once nobody looks at it any more.

TensorFlow takes an aligned array that a `tf.numpy_function` returns without copying it, and may
keep it for long: a variable that it is assigned to takes over the memory. So memory is used again
only when no array refers to it, as the references to it say: TensorFlow holds one for as long as
it reads. Where it holds on, there is simply another piece of memory for the next step.
"""

from __future__ import annotations

import sys
import threading

import numpy as np

from tfdist.collectives.ring.ring import ALIGNMENT

# Smaller ones cost nothing to make, and would hold places for no gain.
_LEAST_BYTES = 1 << 18
# Of one size, how many are kept; those beyond belong to whoever looks at them.
_MOST = 3


class Buffers:
    """Pieces of memory, by size."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, list[np.ndarray]] = {}

    def take(self, size: int) -> np.ndarray:
        """Returns `size` bytes that nobody else looks at, aligned for TensorFlow.

        They are the taker's for as long as it, or anybody, holds the array or a view of it.
        """
        if size < _LEAST_BYTES:
            return _aligned(_allocate(size), size)
        with self._lock:
            kept = self._kept.setdefault(size, [])
            for index in range(len(kept)):
                if _references(kept, index) == _UNUSED:
                    return _aligned(kept[index], size)
            kept.append(_allocate(size))
            if len(kept) > _MOST:
                del kept[0]
            return _aligned(kept[-1], size)


def _allocate(size: int) -> np.ndarray:
    return np.empty(size + ALIGNMENT, np.uint8)


def _aligned(memory: np.ndarray, size: int) -> np.ndarray:
    """A view; it and all views of it hold a reference to `memory`, their base."""
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]


def _references(arrays: list[np.ndarray], index: int) -> int:
    return sys.getrefcount(arrays[index])


# What it is for an array that nothing but its list refers to.
_UNUSED = _references([_allocate(0)], 0)
