"""A change of a message changes its checksum."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.collectives.ring.checksum import CHECKSUM_BYTES, checksum

SIZES = (1, 7, 4096, 8168, 16336, 16343, 100_001, 1 << 20)
DATA = np.random.default_rng(0).integers(0, 256, max(SIZES)).astype(np.uint8)


@pytest.mark.parametrize("size", SIZES)
@given(st.data())
def test_one_or_two_flipped_bits_are_found(size, data):
    """Two of one place in their words, too, the highest included, as a broken wire flips them."""
    message = DATA[:size].copy()
    before = checksum(message.data)
    assert len(before) == CHECKSUM_BYTES
    bit = data.draw(st.integers(0, 7))
    first, second = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    message[first] ^= 1 << bit
    assert checksum(message.data) != before
    if second != first and abs(second - first) % (1021 * 8):
        message[second] ^= 1 << bit
        assert checksum(message.data) != before


def test_pages_and_rows_that_changed_places_are_found():
    before = checksum(DATA.data)
    for size in (64, 4096, 65536):
        swapped = DATA.copy()
        swapped[:size], swapped[-size:] = DATA[-size:], DATA[:size]
        assert checksum(swapped.data) != before


def test_a_small_message_has_its_crc():
    assert checksum(memoryview(b"gradient")) == zlib.crc32(b"gradient").to_bytes(4, "big")
