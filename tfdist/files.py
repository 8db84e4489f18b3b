"""Writes files whole or not at all, and locks files between processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_POLL_SECONDS = 0.25
_FIRST_REPORT_SECONDS = 1.0
_REPORT_SECONDS = 30.0
_LOCKED = (errno.EACCES, errno.EAGAIN)
_HOLDER_BYTES = 1000


@contextlib.contextmanager
def write_whole(path: str | os.PathLike[str], *, suffix: str = ".tmp") -> Iterator[Path]:
    """Gives a path to write a file or a folder at, which then takes its place at once.

    Whoever reads `path` sees what was there before or all of what is written now. If the block
    raises, nothing is left of what it wrote. If the process is killed, the unfinished one stays.

    Args:
        path: The file or the folder; a folder must not exist yet.
        suffix: How the name to write at ends, for writers that look at it.

    Yields:
        The path to write at, in the same folder.

    Raises:
        OSError: It cannot be put in its place.
    """
    new = unfinished(path, suffix)
    with removed_on_error(new):
        yield new
        os.replace(new, path)


def unfinished(path: str | os.PathLike[str], suffix: str = ".tmp") -> Path:
    """Returns where this process writes a file that is to be moved to `path`."""
    path = Path(path)
    return path.with_name(f".{path.name}.{os.getpid()}{suffix}")


@contextlib.contextmanager
def removed_on_error(path: Path) -> Iterator[None]:
    """Removes a file or a folder if the block raises."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        raise


class NoLocksError(OSError):
    """The file system has no locks."""


class Holder(NamedTuple):
    """The process that holds a lock."""

    process: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


# What each process has locked: the descriptor, and how many hold it. A fork does not inherit locks.
_held: dict[tuple[int, Path], tuple[int, int]] = {}
_guard = threading.Lock()


class FileLock:
    """A lock that one process holds at a time; the file names it, and stays.

    It is the lock of POSIX (`lockf`): the kernel releases it when its process ends, however it
    ends, and NFS carries it between machines. A process would lose it by closing any descriptor of
    the file, so it has one, and counts its holders. The file is not removed: two processes could
    then lock two files of one name.

    Args:
        path: The file.
        shared: Whether several holders in this process have it together, as trainers that save to
            one directory do; else they exclude each other, as threads that prepare one data set
            must.

    Attributes:
        holder: The process that had it at the latest attempt to take it; None if it is not known.
    """

    def __init__(self, path: str | os.PathLike[str], *, shared: bool = False) -> None:
        self.holder: Holder | None = None
        self._path = Path(path)
        self._shared = shared
        self._key: tuple[int, Path] | None = None

    def acquire(self, timeout: float, waiting: Callable[[], None]) -> bool:
        """Takes the lock, or waits for its holder; returns whether it was taken.

        Args:
            timeout: The most seconds to wait.
            waiting: Called after a second of waiting, and then twice a minute.

        Raises:
            NoLocksError: The file system has no locks.
            OSError: The file cannot be written.
        """
        start = time.monotonic()
        report = start + _FIRST_REPORT_SECONDS
        while not self._try():
            now = time.monotonic()
            if now - start >= timeout:
                return False
            if now >= report:
                waiting()
                report = now + _REPORT_SECONDS
            time.sleep(_POLL_SECONDS)
        return True

    def release(self) -> None:
        """Releases the lock, if this object has it."""
        with _guard:
            if self._key is None:
                return
            descriptor, count = _held.pop(self._key)
            if count > 1:
                _held[self._key] = descriptor, count - 1
            else:
                os.close(descriptor)
            self._key = None

    def _try(self) -> bool:
        with _guard:
            # Only the way to the file may lead over links: the file is written to.
            key = os.getpid(), self._path.parent.resolve() / self._path.name
            if key == self._key:
                return True
            descriptor, count = _held.get(key, (-1, 0))
            if count and not self._shared:
                self.holder = _holder(descriptor)
                return False
            if not count:
                # A FIFO of that name would keep whoever opens it waiting.
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
                descriptor = _opened(key[1], flags)
                taken = False
                try:
                    taken = _lock(descriptor)
                    if not taken:
                        self.holder = _holder(descriptor)
                        return False
                finally:
                    if not taken:
                        os.close(descriptor)
            _held[key] = descriptor, count + 1
            self._key = key
            return True


def _opened(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            problem = f"{path.name} is a symbolic link; remove it"
            raise OSError(errno.ELOOP, problem, str(path)) from None
        raise


def _lock(descriptor: int) -> bool:
    """Locks a file, and names this process in it; returns whether nobody else has it."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _LOCKED:
            return False
        raise NoLocksError(error.errno, error.strerror) from None
    holder = Holder(os.getpid(), socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S"))
    # Only a reader of a message needs it: a full disk is for the user of the lock to name.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder._asdict()).encode(), 0)
    return True


def _holder(descriptor: int) -> Holder | None:
    try:
        named = json.loads(os.pread(descriptor, _HOLDER_BYTES, 0))
        return Holder(int(named["process"]), str(named["host"]), str(named["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
