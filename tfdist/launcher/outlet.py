"""Writes to streams and files that may be lost, full or slow, and never waits for them.

A reader may go away (`| head`), a terminal may be closed or stopped (Ctrl-S), a disk may be full:
the job continues without that output, which is reported once.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import selectors
from collections.abc import Callable
from typing import BinaryIO, TextIO

# So much waits for a slow reader; what comes when that is full is dropped.
_MOST_BYTES = 8 << 20
# A pipe that is ready takes as much at once (PIPE_BUF), and so does a terminal or a socket.
_AT_ONCE = 4096
# After these errors nobody is left to read; after others, such as a full disk, writing may work.
_FINAL = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ECONNRESET, errno.ENXIO)


class Outlet:
    """A stream for text.

    Args:
        stream: Where it goes; None for a stream that was closed before this process began.
        name: For messages: "stdout".
        say: Receives a line where text is lost, once.
    """

    def __init__(
        self, stream: TextIO | None, name: str, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.name = name
        self.say = say
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._fd = _descriptor(stream)
        self._pending = bytearray()
        self._dropped = 0
        self._said = False
        self._lost = stream is None
        self._attended: selectors.BaseSelector | None = None

    @property
    def waiting(self) -> bool:
        """Whether text waits for a slow reader."""
        return bool(self._pending)

    def write(self, text: str) -> None:
        """Writes whole lines, as far as the stream takes them now; the rest waits."""
        if self._lost:
            return
        if self._fd is None:
            assert self._stream is not None
            self._stream.write(text.encode(self._encoding, "replace").decode(self._encoding))
            self._stream.flush()
            return
        if len(self._pending) > _MOST_BYTES:
            self._dropped += text.count("\n")
            self._tell(f"{self.name} is not read; lines are dropped")
            return
        self._pending += text.encode(self._encoding, "replace")
        self.flush()

    def flush(self) -> None:
        """Writes what waits, as far as the stream takes it now."""
        assert self._fd is not None or not self._pending
        while self._pending and self._fd is not None and _takes_more(self._fd):
            try:
                written = os.write(self._fd, self._pending[:_AT_ONCE])
            except BlockingIOError:
                return
            except OSError as error:
                self._lost = error.errno in _FINAL
                self._pending.clear()
                self._tell(f"{self.name} cannot be written to ({error.strerror})")
                return
            del self._pending[:written]
            if self._dropped and len(self._pending) < _MOST_BYTES // 2:
                lines = f"tfdist: {self._dropped} lines were dropped: nobody read them\n"
                self._pending += lines.encode()
                self._dropped = 0

    def attend(self, selector: selectors.BaseSelector) -> None:
        """Writes what waits, and has a selector wake when the stream takes more."""
        self.flush()
        if self._pending and self._attended is None:
            # A file cannot be waited for, and does not make anybody wait.
            with contextlib.suppress(PermissionError, KeyError, ValueError):
                selector.register(self._fd or 0, selectors.EVENT_WRITE, None)
                self._attended = selector
        elif not self._pending and self._attended is not None:
            self._attended.unregister(self._fd or 0)
            self._attended = None

    def _tell(self, problem: str) -> None:
        if not self._said:
            self._said = True
            self.say(f"{problem}; the job continues without it")


class LogFile:
    """A file for bytes of a task's output.

    Args:
        file: The file, without a buffer.
        say: Receives a line where bytes could not be written.
    """

    def __init__(self, file: BinaryIO, say: Callable[[str], None]) -> None:
        self._file = file
        self._say = say

    def write(self, data: bytes) -> None:
        """Writes, or reports that it could not."""
        try:
            self._file.write(data)
        except OSError as error:
            self._say(f"--log-dir cannot be written to ({error.strerror})")


def standard(stream: TextIO | None) -> TextIO | None:
    """Returns stdout or stderr with its own buffer empty."""
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return stream


def two_outlets(stream: TextIO | None, report: TextIO | None) -> tuple[Outlet, Outlet]:
    """Returns outlets for tasks' lines and the launcher's; each reports the loss of the other."""
    lines = Outlet(standard(stream), "stdout")
    own = Outlet(standard(report), "stderr")
    lines.say = lambda text: own.write(f"tfdist: {text}\n")
    own.say = lambda text: lines.write(f"tfdist: {text}\n")
    return lines, own


def _descriptor(stream: TextIO | None) -> int | None:
    """Returns the descriptor of a file; a notebook's stream has that of another place."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def _takes_more(fd: int) -> bool:
    """Returns whether a write of `_AT_ONCE` bytes returns at once, or fails."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))
