"""A prepared copy of the digits, shared by all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tfdist.data import Source, load


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tfds")


@pytest.fixture(scope="session")
def digits(data_dir: Path) -> Callable[..., Source]:
    """Opens the digits with any of `load`'s arguments."""

    def open_digits(**options: object) -> Source:
        return load("digits", data_dir=data_dir, **options)  # type: ignore[arg-type]

    return open_digits
