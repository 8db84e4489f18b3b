"""Adds checkpoints to a directory in the background, and finds the newest intact one."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.errors import CheckpointError, ConfigError
from tfdist.runtime.log import LOGGER
from tfdist.training.checkpoint import file as checkpoint_file
from tfdist.training.checkpoint.file import DamagedError

_NAME = re.compile(r"checkpoint-(\d{10})\.tfdist$")
_TEMPORARY = re.compile(r"\.checkpoint-\d{10}\.tfdist\.\d+\.tmp$")


class CheckpointDirectory:
    """The checkpoints of one job, the newest of which has the highest number.

    Only the chief of the job may use it. At most one checkpoint is being written at a time,
    by a thread of its own.

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

    def prepare(self) -> None:
        """Creates the directory, and checks that it can be written to.

        Raises:
            ConfigError: It cannot be created or written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
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

    def newest(self) -> tuple[Path, bytes] | None:
        """Reads the newest checkpoint that is intact; logs the damaged ones it skips.

        Returns:
            Its path and bytes; None where there is no checkpoint at all.

        Raises:
            ConfigError: There are checkpoints, and none of them is intact.
        """
        faults = []
        for path in reversed(self._paths()):
            try:
                data = path.read_bytes()
                checkpoint_file.decode(data)
                return path, data
            except FileNotFoundError:
                continue
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

    def add(
        self, number: int, manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Begins to write a checkpoint, after waiting for the one before it.

        Args:
            number: Its place in the order; a checkpoint of the same number is replaced.
            manifest: Facts about the run.
            arrays: Arrays that are not changed any more.

        Raises:
            CheckpointError: The one before it could not be written.
        """
        self.wait()
        self._thread = threading.Thread(
            target=self._write,
            args=(number, dict(manifest), dict(arrays)),
            name="tfdist-checkpoint",
            daemon=True,
        )
        self._thread.start()

    def check(self) -> None:
        """Raises the error of the latest checkpoint, if any, without waiting for it.

        Raises:
            CheckpointError: It could not be written.
        """
        if self._thread is not None and not self._thread.is_alive():
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

    def _write(self, number: int, manifest: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        try:
            path = self.path / f"checkpoint-{number:010d}.tfdist"
            checkpoint_file.write(path, checkpoint_file.encode(manifest, arrays))
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
