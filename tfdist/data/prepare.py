"""Prepares a TFDS dataset on disk once, however many processes ask for it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow_datasets as tfds

from tfdist.data.lock import exclusive
from tfdist.data.tfds_side_effects import (
    progress_hidden,
    random_state_restored,
    warnings_hidden,
)
from tfdist.errors import ConfigError

# TFDS's own host for mirrors; most of its datasets are downloaded from elsewhere, but
# a machine that cannot even resolve this one has no network.
_PROBE_HOST = "storage.googleapis.com"
# An unfinished folder in which nothing was written for so long has no owner.
_ABANDONED_SECONDS = 3600.0


def default_data_dir() -> str:
    """Returns $TFDIST_DATA_DIR, else $TFDS_DATA_DIR, else `~/tensorflow_datasets`."""
    for variable in ("TFDIST_DATA_DIR", "TFDS_DATA_DIR"):
        if os.environ.get(variable):
            return os.environ[variable]
    return os.path.join("~", "tensorflow_datasets")


def prepare(
    make: Callable[[], tfds.core.DatasetBuilder],
    *,
    num_shards: int | None = None,
    bundled: bool = False,
    timeout: float = 3600.0,
) -> tfds.core.DatasetBuilder:
    """Returns the builder of a dataset that is on disk, preparing it if necessary.

    Of all processes of this machine (or, on a shared file system, of all machines) one
    prepares; the others wait and then use the result. TFDS writes to a folder of
    another name and renames it at the end, so there is no partial dataset, and a process
    that is killed while preparing leaves the work to the next.

    Args:
        make: Makes the builder; called again to read a dataset that another process prepared.
        num_shards: Files per split; None for TFDS's choice.
        bundled: Needs no network and no progress bar.
        timeout: Seconds to wait for another process that is preparing.

    Raises:
        ConfigError: It cannot be prepared: no network, files to be downloaded by hand, a
            folder that cannot be written.
        PeerError: Another process was still preparing after `timeout` seconds.
    """
    builder = make()
    if _is_prepared(builder) or _is_mocked(builder):
        return builder
    folder = os.fspath(builder.data_dir)
    name = builder.info.full_name
    with exclusive(_lock_path(folder), task=f"{name} in {folder}", timeout=timeout):
        builder = make()
        if _is_prepared(builder):
            return builder
        _remove_leftovers(Path(folder), 0.0 if bundled else _ABANDONED_SECONDS)
        if not bundled:
            _require_network(builder)
        config = tfds.download.DownloadConfig(num_shards=num_shards)
        try:
            with contextlib.ExitStack() as stack:
                if bundled:
                    stack.enter_context(progress_hidden())
                    stack.enter_context(warnings_hidden())
                stack.enter_context(random_state_restored())
                builder.download_and_prepare(download_config=config)
        except Exception as error:  # whatever a dataset's own script raises
            raise ConfigError(
                f"dataset: {name} is not in {Path(folder).parents[1]} and could not be prepared: "
                f"{one_line(error)}"
            ) from error
    return builder


def one_line(error: BaseException, limit: int = 400) -> str:
    """Returns an exception's message on one line, cut to `limit` characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _is_prepared(builder: tfds.core.DatasetBuilder) -> bool:
    with warnings_hidden():
        return builder.is_prepared()


def _is_mocked(builder: tfds.core.DatasetBuilder) -> bool:
    """Returns whether `tfds.testing.mock_data` serves it: there is nothing to prepare."""
    return builder.download_and_prepare.__module__ == tfds.testing.mock_data.__module__


def _lock_path(folder: str) -> Path:
    if "://" in folder:
        # Object stores have no locks: one process a machine, and TFDS's rename decides.
        key = hashlib.sha256(folder.encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"tfdist-{os.getuid()}" / f"{key}.lock"
    path = Path(folder)
    return path.parent / f".{path.name}.tfdist.lock"


def _remove_leftovers(folder: Path, age: float) -> None:
    """Removes the files of a killed process; called with the lock held."""
    if not folder.parent.is_dir():
        return
    for leftover in folder.parent.glob(f"*incomplete*_{folder.name}"):
        with contextlib.suppress(OSError):
            written = max(path.stat().st_mtime for path in (leftover, *leftover.rglob("*")))
            if time.time() - written >= age:
                shutil.rmtree(leftover)


def _require_network(builder: tfds.core.DatasetBuilder) -> None:
    """Fails at once where TFDS would retry for minutes and then fail."""
    is_of_tfds = type(builder).__module__.startswith("tensorflow_datasets.")
    by_hand = bool(builder.MANUAL_DOWNLOAD_INSTRUCTIONS)
    proxied = any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in os.environ)
    downloads = Path(os.fspath(builder.data_dir)).parents[1] / "downloads"
    downloaded = any(path.is_file() for path in downloads.rglob("*"))
    if not is_of_tfds or by_hand or proxied or downloaded:
        return
    try:
        socket.getaddrinfo(_PROBE_HOST, 443)
    except OSError as error:
        raise ConfigError(
            f"dataset: {builder.info.full_name} is not in {downloads.parent} and cannot be "
            f"downloaded: no network ({_PROBE_HOST}: {error.strerror}); prepare it on a machine "
            "with a network and copy it there, or name its folder with data_dir"
        ) from error
