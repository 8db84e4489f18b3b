"""Copies the files of a dataset to a node's own disk, once a node."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path

import tensorflow as tf

from tfdist.data.lock import exclusive
from tfdist.errors import ConfigError
from tfdist.runtime.log import LOGGER
from tfdist.validation import quote

_REPORT_SECONDS = 10.0
_MB = 1e6


def local_copy(source: str, stage_dir: str, *, timeout: float) -> str:
    """Returns a folder with the same files on another disk, where they are copied if need be.

    Of all processes of a node one copies, and the others wait. The copy gets its name at its end,
    so there is never half of one, and what a killed process has left is written over. It is named
    after the names, sizes and times of the files: where those change, there is another copy.

    Args:
        source: The folder, local or remote as TensorFlow reads it.
        stage_dir: Where copies are kept.
        timeout: Seconds to wait for another process that copies.

    Raises:
        ConfigError: `stage_dir` cannot be written, or is too small, or `source` cannot be read.
        PeerError: Another process was still copying after `timeout` seconds.
    """
    where = f"stage_dir: {quote(stage_dir)}"
    source, root = source.rstrip("/"), Path(stage_dir).expanduser()
    try:
        files = _files(source)
    except tf.errors.OpError as error:
        raise ConfigError(f"stage_dir: {quote(source)} cannot be read ({error.message})") from None
    name = os.path.basename(source)
    target = root / f"tfdist-{_digest(source, files)}" / name
    if target.is_dir():
        return str(target)
    lock = root / f".{target.parent.name}.lock"
    with exclusive(lock, task=f"{source} in {stage_dir}", timeout=timeout, option="stage_dir"):
        if target.is_dir():
            return str(target)
        size = sum(length for _, length, _ in files)
        unfinished = target.parent / ".unfinished"
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            free = shutil.disk_usage(root).free
            if size > free:
                raise ConfigError(
                    f"{where} has {free / _MB:,.0f} MB free, and {quote(source)} has "
                    f"{size / _MB:,.0f}; give another disk, or remove old copies (tfdist-*)"
                )
            _copy(source, files, unfinished, str(root))
            os.rename(unfinished, target)
        except (OSError, tf.errors.OpError) as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            reason = getattr(error, "strerror", None) or getattr(error, "message", error)
            raise ConfigError(
                f"{where} cannot be written ({reason}); give another directory"
            ) from None
    return str(target)


def _files(source: str) -> list[tuple[str, int, int]]:
    """Returns the path under `source`, the bytes and the time of change of each file."""
    found = []
    for folder, _, names in tf.io.gfile.walk(source):
        for name in names:
            path = os.path.join(folder, name)
            stat = tf.io.gfile.stat(path)
            found.append((os.path.relpath(path, source), stat.length, stat.mtime_nsec))
    return sorted(found)


def _digest(source: str, files: list[tuple[str, int, int]]) -> str:
    place = source if "://" in source else os.path.realpath(source)
    return hashlib.sha256(repr((place, files)).encode()).hexdigest()[:16]


def _copy(source: str, files: list[tuple[str, int, int]], target: Path, shown: str) -> None:
    size, done = sum(length for _, length, _ in files), 0
    began = reported = time.monotonic()
    LOGGER.info("copying %s to %s: %s MB", source, shown, f"{size / _MB:,.1f}")
    for path, length, _ in files:
        into = target / path
        into.parent.mkdir(parents=True, exist_ok=True)
        tf.io.gfile.copy(os.path.join(source, path), str(into))
        done += length
        now = time.monotonic()
        if now - reported >= _REPORT_SECONDS:
            reported = now
            LOGGER.info(
                "copied %s of %s MB, %s MB/s",
                f"{done / _MB:,.0f}",
                f"{size / _MB:,.0f}",
                f"{done / _MB / (now - began):,.0f}",
            )
    LOGGER.info("copied %d files in %.1f s", len(files), time.monotonic() - began)
