"""Lets one process prepare a data set while the others wait for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tfdist.errors import ConfigError, PeerError
from tfdist.files import FileLock, NoLocksError
from tfdist.runtime.log import LOGGER


@contextlib.contextmanager
def exclusive(path: Path, *, task: str, timeout: float, option: str = "data_dir") -> Iterator[None]:
    """Holds the lock file at `path`; one process at a time, others wait.

    Args:
        path: The lock file; its folder is created.
        task: The dataset to prepare, as in "digits in /data", for messages.
        timeout: Seconds to wait for another holder.
        option: What names the folder, for messages.

    Raises:
        ConfigError: The file cannot be written or locked there.
        PeerError: Another process still holds it after `timeout` seconds.
    """
    lock = FileLock(path)

    def waiting() -> None:
        LOGGER.info("waiting for %s to prepare %s", lock.holder or "another process", task)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        taken = lock.acquire(timeout, waiting)
    except NoLocksError as error:
        raise ConfigError(
            f"{option}: {path} cannot be locked ({error.strerror}); choose a {option} on a "
            "file system with locks"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{option}: cannot write {path} ({error.strerror}); choose another {option}"
            f"{' or set TFDIST_DATA_DIR' if option == 'data_dir' else ''}"
        ) from error
    if not taken:
        raise PeerError(
            f"waited {timeout:g} s for {lock.holder or 'another process'} to prepare {task}; check "
            "whether it is stuck, or allow more with prepare_timeout"
        )
    try:
        yield
    finally:
        lock.release()
