"""A prepared copy of the digits, shared by all tests of this folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import forked
from tfdist.data import Source, load

Start = Callable[..., forked.Popen]


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tfds")


@pytest.fixture(scope="session")
def digits(data_dir: Path) -> Callable[..., Source]:
    """Opens the digits with any of `load`'s arguments."""

    def open_digits(**options: object) -> Source:
        return load("digits", data_dir=data_dir, **options)  # type: ignore[arg-type]

    return open_digits


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python programs and leaves none behind."""
    running = []

    def run(program: str, *arguments: object) -> forked.Popen:
        process = forked.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()
