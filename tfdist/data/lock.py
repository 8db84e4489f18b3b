"""Locks a file between processes; a crash releases the lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from tfdist.errors import ConfigError, PeerError
from tfdist.runtime.log import LOGGER

_POLL_SECONDS = 0.1
_REPORT_SECONDS = 30.0


@contextlib.contextmanager
def exclusive(path: Path, *, task: str, timeout: float, option: str = "data_dir") -> Iterator[None]:
    """Holds the lock file at `path`; one process at a time, others wait.

    The kernel releases it when its holder ends, however it ends. The file stays:
    deleting it would let two processes lock two different files.

    Args:
        path: the lock file; its folder is created.
        task: the dataset to prepare, as in "digits in /data", for messages.
        timeout: seconds to wait for another holder.
        option: what names the folder, for messages.

    Raises:
        ConfigError: the file cannot be written or locked there.
        PeerError: another process still holds it after `timeout` seconds.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise ConfigError(
            f"{option}: cannot write {path} ({error.strerror}); choose another {option}"
            f"{' or set TFDIST_DATA_DIR' if option == 'data_dir' else ''}"
        ) from error
    try:
        _acquire(descriptor, path, task, timeout, option)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, task: str, timeout: float, option: str) -> None:
    start = time.monotonic()
    reported = start - _REPORT_SECONDS + 1  # the first report after a second
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        except OSError as error:
            raise ConfigError(
                f"{option}: {path} cannot be locked ({error.strerror}); choose a {option} on a "
                "file system with locks"
            ) from error
        now = time.monotonic()
        holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
        if now - start >= timeout:
            raise PeerError(
                f"waited {timeout:g} s for {holder} to prepare {task}; check whether it is stuck, "
                "or allow more with prepare_timeout"
            )
        if now - reported >= _REPORT_SECONDS:
            reported = now
            LOGGER.info("waiting for %s to prepare %s", holder, task)
        time.sleep(_POLL_SECONDS)
