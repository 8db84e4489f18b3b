"""A network namespace beside that of the tests: somebody else's machine on the same network."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest


class Outside(NamedTuple):
    """Another network namespace.

    Attributes:
        name: Its name.
        address: The address of the tests' own namespace, as seen from there.
    """

    name: str
    address: str

    def command(self, *words: str) -> list[str]:
        """Returns a command that runs there."""
        return ["ip", "netns", "exec", self.name, *words]


@contextlib.contextmanager
def make_outside() -> Iterator[Outside]:
    """Makes a namespace, or skips the test where that cannot be done."""
    if os.geteuid() != 0:
        pytest.skip("makes a network namespace, which needs root")
    # Rows of tests run at once: each has a network of its own.
    number = os.getpid()
    network = f"10.{64 + (number >> 8) % 64}.{number % 256}"
    made = Outside(f"tfdist-test-{number}", f"{network}.1")
    here, there = f"t{number}", "outside"
    commands = [
        ["ip", "netns", "add", made.name],
        ["ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", made.name],
        ["ip", "addr", "add", f"{made.address}/24", "dev", here],
        ["ip", "link", "set", here, "up"],
        ["ip", "-n", made.name, "addr", "add", f"{network}.2/24", "dev", there],
        ["ip", "-n", made.name, "link", "set", there, "up"],
    ]
    try:
        for command in commands:
            if subprocess.run(command, capture_output=True).returncode:
                pytest.skip("network namespaces cannot be made here")
        yield made
    finally:
        subprocess.run(["ip", "netns", "del", made.name], capture_output=True)
        subprocess.run(["ip", "link", "del", here], capture_output=True)
