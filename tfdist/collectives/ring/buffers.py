"""Reuses memory once no array refers to it any more.

TensorFlow takes an aligned array that a `tf.numpy_function` returns without copying it, and may
keep it for long: a variable that it is assigned to takes over the memory. So memory is reused only
when its reference count shows that no array refers to it: TensorFlow holds a reference for as long
as it reads. While it does, the next step gets other memory.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import numpy as np

from tfdist.collectives.ring.ring import ALIGNMENT

# Smaller pieces are cheap to allocate, so they are not kept.
_LEAST_BYTES = 1 << 18
# Pieces kept of each size; any others are freed with their last reference.
_MOST = 3


class Buffers:
    """A pool of pieces of memory, by size.

    Args:
        allocate: Returns new memory of a number of bytes.
    """

    def __init__(self, allocate: Callable[[int], np.ndarray] | None = None) -> None:
        self._allocate = allocate or _allocate
        self._lock = threading.Lock()
        self._kept: dict[int, list[np.ndarray]] = {}

    def take(self, size: int) -> np.ndarray:
        """Returns `size` bytes that nothing else refers to, aligned for TensorFlow.

        They are not reused while the array or a view of it is referred to.
        """
        if size < _LEAST_BYTES:
            return _aligned(_allocate(size + ALIGNMENT), size)
        with self._lock:
            kept = self._kept.setdefault(size, [])
            for index in range(len(kept)):
                if _references(kept, index) == _UNUSED:
                    return _aligned(kept[index], size)
            kept.append(self._allocate(size + ALIGNMENT))
            if len(kept) > _MOST:
                del kept[0]
            return _aligned(kept[-1], size)


def _allocate(size: int) -> np.ndarray:
    return np.empty(size, np.uint8)


def _aligned(memory: np.ndarray, size: int) -> np.ndarray:
    """Returns an aligned view; it and all views of it hold a reference to `memory`."""
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]


def _references(arrays: list[np.ndarray], index: int) -> int:
    return sys.getrefcount(arrays[index])


# The count for an array that only its list refers to.
_UNUSED = _references([_allocate(0)], 0)
