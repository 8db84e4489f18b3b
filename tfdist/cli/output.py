"""Writes JSON to stdout, and files, which are checked to be writable before the work begins."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.validation import printable, quote


def output(text: str) -> Path:
    """Reads the name of a file to write.

    Raises:
        argparse.ArgumentTypeError: It cannot be written.
    """
    path = Path(text)
    place = path if path.exists() else path.absolute().parent
    if path.is_dir() or not os.access(place, os.W_OK):
        raise argparse.ArgumentTypeError(
            f"{quote(text)} cannot be written; give a file in a directory that exists"
        )
    return path


def picture(text: str) -> Path:
    """Reads the name of a file to draw.

    Raises:
        argparse.ArgumentTypeError: It cannot be written, or matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("needs matplotlib; pip install 'tfdist[plots]'")
    return output(text)


def print_json(figures: Any) -> None:
    """Prints all figures of a command, for other programs."""
    print(json.dumps(figures, indent=2), flush=True)


def write_json(path: Path, figures: Any) -> None:
    """Writes figures for other programs."""
    path.write_text(json.dumps(figures, indent=1) + "\n")


def made_by(argv: Sequence[str]) -> str:
    """Returns the comment that names the command that wrote a file, in one or several lines."""
    # YAML ends a comment at more than line feeds, and refuses what does not print.
    lines = shlex.join(["tfdist", *argv]).splitlines()
    return "\n".join(f"# {printable(line)}" for line in lines)
