"""A checksum of what a worker sends, at nearly the speed at which memory is read.

zlib's CRC-32 of a step's gradients would take as long as sending them, so words of 64 bits are
added up in columns first, and the CRC is that of the sums. Whatever changes within 8 KB is found
as by the CRC itself; further apart, changes would have to cancel each other in their columns. That
is for broken machines: who can change messages can change their checksums.
"""

from __future__ import annotations

import zlib

import numpy as np

CHECKSUM_BYTES = 4
# Prime, so that equal distances in memory (of a page, a row of a matrix) meet in other columns.
_COLUMNS = 1021
_ROW_BYTES = _COLUMNS * 8


def checksum(data: memoryview) -> bytes:
    """Returns the checksum of some bytes, the same on machines of one byte order."""
    rows = len(data) // _ROW_BYTES
    whole = rows * _ROW_BYTES if rows > 1 else 0
    value = 0
    if whole:
        words = np.frombuffer(data[:whole], np.uint64).reshape(rows, _COLUMNS)
        value = zlib.crc32(np.add.reduce(words, axis=0))
    return zlib.crc32(data[whole:], value).to_bytes(CHECKSUM_BYTES, "big")
