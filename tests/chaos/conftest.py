"""What all chaos tests share: no test may leave a process or a port behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.harness import Programs


@pytest.fixture
def programs() -> Iterator[Programs]:
    started = Programs()
    try:
        yield started
    finally:
        started.close()
