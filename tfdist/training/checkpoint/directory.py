"""Adds checkpoints to a directory, and finds the newest intact one."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfdist import __version__
from tfdist.errors import CheckpointError, ConfigError
from tfdist.files import FileLock, NoLocksError
from tfdist.runtime.heartbeat import record_saved
from tfdist.runtime.log import LOGGER
from tfdist.runtime.timeouts import wait_seconds
from tfdist.training.checkpoint import file as checkpoint_file
from tfdist.training.checkpoint.file import Arrays, DamagedError, Reader, UnknownFormatError

LOCK = ".tfdist.lock"
# A job that is asked to end may still be saving when the one that takes its place begins. With
# TFDIST_WAIT, tasks wait no longer for it than for each other.
_LOCK_SECONDS = 120.0
_NAME = re.compile(r"checkpoint-(\d{10})\.tfdist$")
_TEMPORARY = re.compile(r"\.checkpoint-\d{10}\.tfdist\.\d+\.tmp$")


class CheckpointDirectory:
    """The checkpoints of one job, the newest of which has the highest number.

    Only the chief of the job may use it. At most one checkpoint is on its way to the disk at a
    time, waited for by another thread.

    Args:
        path: The directory; it is created when first written to.
        keep: The number of checkpoints to keep.
    """

    def __init__(self, path: str | os.PathLike[str], keep: int) -> None:
        self.path = Path(path)
        self._keep = keep
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._damaged: set[str] = set()
        self._lock = FileLock(self.path / LOCK, shared=True)

    def prepare(self) -> None:
        """Creates the directory, takes its lock, and checks that it can be written to.

        Raises:
            ConfigError: It cannot be created or written to, or another job uses it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            for name in os.listdir(self.path):
                if _TEMPORARY.match(name):  # A run was killed while it wrote this one.
                    (self.path / name).unlink(missing_ok=True)
            probe = self.path / f".checkpoint-0000000000.tfdist.{os.getpid()}.tmp"
            probe.write_bytes(b"-")
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"checkpoint_dir: {str(self.path)!r} cannot be written to ({error.strerror}); "
                "give a directory on a disk with space that this user may write to"
            ) from None

    def release(self) -> None:
        """Releases the directory's lock."""
        self._lock.release()

    def _take_lock(self) -> None:
        """Takes the directory's lock; waits for a job that is about to end."""
        lock, patience = self._lock, min(wait_seconds(), _LOCK_SECONDS)

        def used_by() -> str:
            holder = lock.holder
            known = f"{holder}, since {holder.since}" if holder else "the lock does not name it"
            return f"{str(self.path)!r} is in use by another job ({known})"

        def waiting() -> None:
            LOGGER.info(
                "checkpoint_dir: %s; waiting for its end, for %.0f s at most", used_by(), patience
            )

        try:
            taken = lock.acquire(patience, waiting)
        except NoLocksError as error:
            LOGGER.warning(
                "checkpoint_dir: its file system has no locks (%s); make sure that no other job "
                "uses the directory",
                error.strerror,
            )
            return
        if not taken:
            raise ConfigError(f"checkpoint_dir: {used_by()}; give this job its own directory")

    def newest(self) -> tuple[Path, Reader] | None:
        """Opens the newest checkpoint that is intact; logs the damaged ones it skips.

        Returns:
            Its path and content; None where there is no checkpoint at all.

        Raises:
            ConfigError: There are checkpoints, and none of them is intact; or the newest is of
                another version of tfdist.
        """
        faults = []
        for path in reversed(self._paths()):
            try:
                return path, checkpoint_file.open_checkpoint(path)
            except FileNotFoundError:
                continue
            except UnknownFormatError as error:
                # Training on from the one before would overwrite what that version has done.
                raise ConfigError(
                    f"checkpoint_dir: {path} is of another version of tfdist than this one "
                    f"({__version__}): {error}; use that version, or give another directory"
                ) from None
            except (DamagedError, OSError) as error:
                fault = error.strerror if isinstance(error, OSError) else str(error)
                faults.append(f"{path.name}: {fault}")
                self._damaged.add(path.name)
                LOGGER.warning(
                    "checkpoint %s cannot be used: %s; trying the one before it", path, fault
                )
        if faults:
            raise ConfigError(
                f"checkpoint_dir: {str(self.path)!r} holds no intact checkpoint "
                f"({'; '.join(faults)}); put one back, or remove them to train from the start"
            )
        return None

    def add(self, number: int, manifest: Mapping[str, Any], arrays: Arrays) -> None:
        """Writes a checkpoint, and begins to bring it to the disk.

        The arrays are written one by one before this returns, so that no copy of them all is
        needed; a thread waits for the disk.

        Args:
            number: Its place in the order; a checkpoint of the same number is replaced.
            manifest: Facts about the run.
            arrays: Its arrays.

        Raises:
            CheckpointError: The one before it could not be written.
        """
        self.wait()
        path = self.path / f"checkpoint-{number:010d}.tfdist"
        try:
            temporary = checkpoint_file.begin(path, manifest, arrays)
        except Exception as error:  # Raised later, by `wait`, as for one that the disk refuses.
            self._error = error
            return
        self._thread = threading.Thread(
            target=self._finish,
            args=(number, temporary, path),
            name="tfdist-checkpoint",
            daemon=True,
        )
        self._thread.start()

    def check(self) -> None:
        """Raises the error of the latest checkpoint, if any, without waiting for it.

        Raises:
            CheckpointError: It could not be written.
        """
        if self._thread is None or not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Waits until the latest checkpoint is on the disk.

        Raises:
            CheckpointError: It could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise CheckpointError(
                f"checkpoint_dir: {str(self.path)!r}: a checkpoint could not be written "
                f"({getattr(error, 'strerror', None) or error}); those before it are untouched; "
                "check the disk and start again"
            ) from error

    def _finish(self, number: int, temporary: Path, path: Path) -> None:
        try:
            is_new = not path.exists()  # Else this run has come no further than the one before.
            checkpoint_file.finish(temporary, path)
            if is_new:
                record_saved()
            self._damaged.discard(path.name)
            self._prune(number)
        except Exception as error:  # Raised later, by `wait`, in the caller's thread.
            self._error = error

    def _prune(self, number: int) -> None:
        """Removes the checkpoints older than the last few intact ones."""
        older = [p for p in self._paths() if _number(p) <= number]
        intact = [p for p in older if p.name not in self._damaged]
        kept = {_number(path) for path in intact[-self._keep :]}
        for path in older:
            if kept and _number(path) < min(kept):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _paths(self) -> list[Path]:
        """Returns the checkpoints, the oldest first."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(
                f"checkpoint_dir: {str(self.path)!r} cannot be read ({error.strerror}); "
                "give a directory that this user may read"
            ) from None
        return [self.path / name for name in sorted(names) if _NAME.match(name)]


def _number(path: Path) -> int:
    match = _NAME.match(path.name)
    assert match is not None
    return int(match[1])
