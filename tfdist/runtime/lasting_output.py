"""Lets a program go on when nobody reads its output any more, or the disk under it is full."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TextIO


def outlast_readers() -> None:
    """Makes stdout and stderr streams whose loss is said once, and ends nothing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Lasting):
            setattr(sys, name, _Lasting(stream, name))


def send_nowhere(stream: TextIO) -> None:
    """Gives what this program, a library or Python's last flush still writes somewhere to go."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class _Lasting:
    """A stream that takes everything; what cannot be written is dropped.

    Args:
        stream: The stream behind it.
        name: Its name.
    """

    def __init__(self, stream: Any, name: str) -> None:
        self._stream = stream
        self._name = name

    def write(self, text: str) -> int:
        """Writes text, or drops it; returns its length."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Flushes the stream."""
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self, error: OSError) -> None:
        send_nowhere(self._stream)
        other = sys.stderr if self._name == "stdout" else sys.stdout
        reason = f"{self._name} cannot be written to ({error.strerror})"
        if other is not None:
            print(f"tfdist: {reason}; training goes on without it", file=other, flush=True)
