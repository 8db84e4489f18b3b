"""A checkpoint that all workers read together, and the position of training that it holds."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdist import __version__
from tfdist.collectives.process_group import ProcessGroup
from tfdist.errors import ConfigError
from tfdist.training.checkpoint.file import Reader


@dataclass(frozen=True)
class Position:
    """The position of a training run.

    Attributes:
        fit: The number of the call of `fit`, from 0.
        first_epoch: The epoch that call began with.
        epoch: The current epoch.
        step: Batches of this epoch that were trained on.
        total: Batches that were trained on altogether, in earlier calls too.
        seed: The seed of the order of arrays, which depends on the epoch too.
        global_batch: Rows of a batch over all workers.
        finished: Whether this call of `fit` is done, even if epochs are left.
        steps: Batches that this epoch has, None if unknown before its end.
    """

    fit: int = 0
    first_epoch: int = 0
    epoch: int = 0
    step: int = 0
    total: int = 0
    seed: int = 0
    global_batch: int = 0
    finished: bool = False
    steps: int | None = None

    def after(self, steps: int, global_batch: int) -> int:
        """Converts a number of steps to steps of another global batch, by examples."""
        if self.global_batch in (0, global_batch):
            return steps
        return steps * self.global_batch // global_batch

    def next_fit(self, initial_epoch: int, seed: int, global_batch: int) -> Position:
        """Returns where the next call of `fit` begins, if no checkpoint says otherwise.

        Args:
            initial_epoch: The epoch to start at.
            seed: The seed of the order of arrays.
            global_batch: Rows of a batch over all workers.
        """
        return Position(
            fit=self.fit + 1,
            first_epoch=initial_epoch,
            epoch=initial_epoch,
            total=self.total,
            seed=seed,
            global_batch=global_batch,
        )


class Saved:
    """A checkpoint that was found, the same on every worker; its arrays are in the chief's file.

    Args:
        name: Its path.
        manifest: Its facts about the run.
        arrays: Name, type and shape of each array, in order.
        group: The processes that train, all of which read at the same point.
        reader: The file, on the chief.

    Raises:
        ConfigError: It is of another version of tfdist.
    """

    def __init__(
        self,
        name: str,
        manifest: dict[str, Any],
        arrays: list[tuple[str, str, list[int]]],
        group: ProcessGroup,
        reader: Reader | None,
    ) -> None:
        self.name = name
        self.manifest = manifest
        self._arrays = {entry[0]: (np.dtype(entry[1]), tuple(entry[2])) for entry in arrays}
        self._group = group
        self._reader = reader
        if reader is not None:  # Whatever becomes of the training.
            weakref.finalize(self, reader.close)
        try:
            self.position = Position(**manifest["position"])
            _check_understood(manifest)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"checkpoint_dir: {name} was written by tfdist {manifest.get('tfdist', '?')} and "
                f"is not understood by this one, {__version__} ({error!r}); use that version, or "
                "give another directory"
            ) from None

    def read(self, name: str) -> np.ndarray:
        """Returns an array on every worker; all must call it at the same point.

        Raises:
            ConfigError: The checkpoint has no such array.
        """
        if name not in self._arrays:
            raise ConfigError(f"checkpoint_dir: {self.name} lacks {name!r}; it is of another job")
        if self._reader is not None:
            values = self._reader.read(name)
        else:
            dtype, shape = self._arrays[name]
            values = np.empty(shape, dtype)
        self._group.broadcast_into(values.reshape(-1).view(np.uint8))
        return values

    def read_all(self, prefix: str) -> dict[str, np.ndarray]:
        """Returns the arrays whose names begin so, on every worker."""
        return {name: self.read(name) for name in self._arrays if name.startswith(prefix)}

    def close(self) -> None:
        """Closes the file."""
        if self._reader is not None:
            self._reader.close()


def _check_understood(manifest: dict[str, Any]) -> None:
    """Raises an error of Python's where a field is missing or of another type."""
    for kind in ("model", "optimizer", "metrics"):
        for path, shape, dtype in manifest[kind]:
            str(path), list(map(int, shape)), str(dtype)
    dict(manifest["logs"]), dict(manifest["callbacks"])
    cluster = manifest["cluster"]
    str(cluster["strategy"]), int(cluster["replicas"]), int(cluster["workers"])
