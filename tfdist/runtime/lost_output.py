"""Lets a program continue when nobody reads its output any more, or the disk is full."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TextIO


def survive_broken_pipe() -> None:
    """Makes the loss of stdout or stderr one message on the other, where it would be an error."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _SurvivingStream):
            setattr(sys, name, _SurvivingStream(stream, name))


def redirect_to_devnull(stream: TextIO) -> None:
    """Discards all that this program, a library or Python's last flush still writes to a stream."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)


class _SurvivingStream:
    """A stream that accepts everything; what cannot be written is dropped.

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
        redirect_to_devnull(self._stream)
        other = sys.stderr if self._name == "stdout" else sys.stdout
        reason = f"{self._name} cannot be written to ({error.strerror})"
        if other is not None:
            print(f"tfdist: {reason}; training continues without it", file=other, flush=True)
