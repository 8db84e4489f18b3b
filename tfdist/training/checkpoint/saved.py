"""A checkpoint that all workers read together, array by array, from the chief's file."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from tfdist import __version__
from tfdist.collectives.process_group import ProcessGroup
from tfdist.errors import ConfigError
from tfdist.training.checkpoint.file import Reader
from tfdist.training.checkpoint.position import Position


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
        """Lets go of the file."""
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
