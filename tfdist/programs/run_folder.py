"""Prepares the folder of a run, which may hold an earlier run."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil

import yaml

from tfdist.errors import ConfigError
from tfdist.files import write_whole
from tfdist.programs.options import TrainOptions
from tfdist.programs.records import BOARD
from tfdist.validation import quote

CONFIG = "config.yaml"
# A run with other values of these is another run; the others may change when it continues.
_IDENTITY = (
    *("dataset", "validation_split", "model", "image_size", "augment", "optimizer", "seed"),
    *("label_smoothing", "ema", "synchronized_batch_norm", "mixed_precision", "accumulate_steps"),
)
_FILES = (
    *(CONFIG, "plan.json", "history.json", "events.jsonl", "summary.txt"),
    *("model.keras", "images.json", "evaluation.jsonl"),
)
_FOLDERS = ("evaluation", "profile", BOARD)


def output_directory(given: str | None) -> pathlib.Path | None:
    """Makes the directory for results, where one is given.

    Raises:
        ConfigError: It cannot be written to.
    """
    if given is None:
        return None
    path = pathlib.Path(given)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"output_dir: {given!r} cannot be written ({error.strerror}); give another directory"
        ) from None
    return path


def open_run(options: TrainOptions) -> pathlib.Path | None:
    """Prepares the folder of a run, to continue the run that is in it or to begin a new one.

    Args:
        options: The options of the run, settled.

    Returns:
        The folder; None where none is given.

    Raises:
        ConfigError: It cannot be written to, or has another run, which stays as it is.
    """
    path = output_directory(options.output_dir)
    if path is None:
        return None
    before = _read(path / CONFIG)
    # A job that was restarted continues: it would otherwise remove what it has just saved.
    if options.overwrite and not _is_a_restart():
        _clear(path, options.checkpoint_dir)
    else:
        _check_same(path, before, options)
    with write_whole(path / CONFIG) as new:
        new.write_text(options.to_yaml())
    return path


def _check_same(path: pathlib.Path, before: dict[str, object], options: TrainOptions) -> None:
    for name in _IDENTITY:
        now = getattr(options, name)
        if name in before and before[name] != now:
            flag = name.replace("_", "-")
            raise ConfigError(
                f"output_dir: {quote(str(path))} has a run with --{flag} {before[name]}, and "
                f"{now} is given; give another directory, or --overwrite to remove that run"
            )


def _is_a_restart() -> bool:
    counts = (os.environ.get("TFDIST_ATTEMPT", "1"), os.environ.get("SLURM_RESTART_COUNT", "0"))
    return counts[0] not in ("", "1") or counts[1] not in ("", "0")


def _clear(path: pathlib.Path, checkpoint_dir: str | None) -> None:
    """Removes the files of a run, and nothing else."""
    for name in _FILES:
        (path / name).unlink(missing_ok=True)
    for name in _FOLDERS:
        shutil.rmtree(path / name, ignore_errors=True)
    if checkpoint_dir is not None:
        for saved in pathlib.Path(checkpoint_dir).glob("checkpoint-*.tfdist"):
            saved.unlink(missing_ok=True)


def _read(path: pathlib.Path) -> dict[str, object]:
    with contextlib.suppress(OSError, yaml.YAMLError, UnicodeDecodeError):
        found = yaml.safe_load(path.read_text())
        return found if isinstance(found, dict) else {}
    return {}
