"""Keeps two jobs from writing to one directory at the same time.

The lock is of POSIX (`fcntl`): the kernel lets go of it when its process ends, however it ends, and
NFS carries it between machines. The file names its holder, for the message; it stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.runtime.log import LOGGER
from tfdist.runtime.timeouts import wait_seconds

NAME = ".tfdist.lock"
# A job that was told to end may still be saving when the one that takes its place begins. With
# TFDIST_WAIT, tasks wait no longer for it than for each other.
_PATIENCE_SECONDS = 120.0
_AGAIN_SECONDS = 0.25
_HELD = (errno.EACCES, errno.EAGAIN)
_MOST_BYTES = 1000

# A process loses its lock when it closes any descriptor of the file: so it has one, and counts.
_held: dict[Path, tuple[int, int]] = {}


class DirectoryLock:
    """The lock of a directory, for this process.

    Args:
        folder: The directory.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._key: Path | None = None

    def acquire(self) -> None:
        """Takes the lock; waits for a job that is about to end.

        Raises:
            ConfigError: Another job does not let go of it.
            OSError: The directory cannot be written to.
        """
        if self._key is not None:
            return
        key = self._path.resolve()
        descriptor, count = _held.get(key, (-1, 0))
        if not count:
            descriptor = os.open(key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
            try:
                self._wait_for(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        _held[key] = descriptor, count + 1
        self._key = key

    def release(self) -> None:
        """Lets go of it."""
        if self._key is None:
            return
        descriptor, count = _held.pop(self._key)
        if count > 1:
            _held[self._key] = descriptor, count - 1
        else:
            os.close(descriptor)
        self._key = None

    def _wait_for(self, descriptor: int) -> None:
        patience = min(wait_seconds(), _PATIENCE_SECONDS)
        until = time.monotonic() + patience
        said = False
        while not _take(descriptor):
            holder = _holder(descriptor)
            if time.monotonic() > until:
                raise ConfigError(
                    f"checkpoint_dir: {str(self._path.parent)!r} is in use by another job "
                    f"({holder}); give this job a directory of its own"
                )
            if not said:
                said = True
                LOGGER.info(
                    "checkpoint_dir: %r is in use by another job (%s); waiting for its end, for "
                    "%.0f s at most",
                    *(str(self._path.parent), holder, patience),
                )
            time.sleep(_AGAIN_SECONDS)
        me = {"host": socket.gethostname(), "process": os.getpid()}
        text = json.dumps(me | {"since": time.strftime("%Y-%m-%d %H:%M:%S")})
        # Nobody but a reader of the message needs it: a full disk is for the checkpoint to name.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, text.encode(), 0)


def _take(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        LOGGER.warning(
            "checkpoint_dir: its file system has no locks (%s); see to it that no other job uses "
            "the directory",
            error.strerror,
        )
    return True


def _holder(descriptor: int) -> str:
    try:
        told = json.loads(os.pread(descriptor, _MOST_BYTES, 0))
        return f"process {int(told['process'])} on {told['host']}, since {told['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "which does not say what it is"
