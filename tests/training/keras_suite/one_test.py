"""How a test of Keras runs here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.training.keras_suite.left_out import EVERYWHERE, reason
from tests.training.keras_suite.sending import PLAIN, sent


class OneTest:
    """The base of Keras' classes of tests.

    Attributes:
        about: What the class tests.
        leaves_out: Which tests, and why.
    """

    about = ""
    leaves_out: dict[str, str] = {}

    @pytest.fixture
    def strategy(self) -> Any:
        """What the test runs under; None leaves that to the test."""
        return None

    @pytest.fixture(autouse=True)
    def _sent(self, request: pytest.FixtureRequest, strategy: Any) -> Iterator[None]:
        why = reason(f"{self.about}: {request.node.name}", EVERYWHERE, self.leaves_out)
        if why and not PLAIN:
            pytest.skip(why)
        with sent(strategy):
            yield
