"""Runs quick tests with each version of Python, TensorFlow and Keras: `python -m tests.matrix`.

Each combination gets an environment of its own, which is removed afterwards: it takes 2 GB, and
some minutes. A Python that is not there is left out. Prints a table; exits with 1 if anything
failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13")
TENSORFLOWS = ("2.20", "2.21")
KERASES = ("3.13", "3.14", "3.15")
TOOLS = ("pytest", "hypothesis", "psutil", "tensorboard")
# What changes with the versions: strategies, steps, callbacks and data; and two real workers.
TESTS = (
    *("tests/strategy/test_strategy.py", "tests/training/test_callbacks.py"),
    *("tests/training/test_feeds.py", "tests/training/test_options.py"),
    "tests/data/test_sharding.py",
    "tests/test_examples.py::test_it_runs_as_its_first_lines_say[multi_worker_mirrored]",
)
_SECONDS = 1800


class Cell(NamedTuple):
    """A combination of versions."""

    python: str
    tensorflow: str
    keras: str


def main(arguments: list[str]) -> int:
    """Runs the cells that are asked for; returns the exit code."""
    options = _options(arguments)
    cells = [Cell(*versions) for versions in product(options.python, options.tf, options.keras)]
    rows = []
    for number, cell in enumerate(cells, start=1):
        began = time.monotonic()
        result = _run(cell) if _is_there(cell.python) else "no such Python"
        seconds = f"{time.monotonic() - began:.0f} s"
        rows.append((Path(cell.python).name, cell.tensorflow, cell.keras, result, seconds))
        print(f"{number}/{len(cells)}: {'  '.join(rows[-1])}", file=sys.stderr, flush=True)
    _print([("python", "tensorflow", "keras", "result", "time"), *rows])
    return int(any(not re.match(r"\d+ passed|no such", row[3]) for row in rows))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    for flag, default in (("python", PYTHONS), ("tf", TENSORFLOWS), ("keras", KERASES)):
        help_ = f"of {', '.join(default)}, or others"
        parser.add_argument(f"--{flag}", nargs="+", default=default, metavar="V", help=help_)
    return parser.parse_args(arguments)


def _is_there(python: str) -> bool:
    """Returns whether a Python runs; a shim on PATH may only say that it does not."""
    found = shutil.which(python)
    if found is None:
        return False
    return subprocess.run([found, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0


def _run(cell: Cell) -> str:
    """Returns what came of a cell: the end of pytest's last line, or what went wrong before."""
    with tempfile.TemporaryDirectory(prefix="tfdist-matrix-") as folder:
        environ = dict(os.environ, PATH=f"{folder}/bin:{os.environ['PATH']}", TMPDIR=folder)
        environ.pop("PYTHONPATH", None)
        versions = (f"tensorflow=={cell.tensorflow}.*", f"keras=={cell.keras}.*")
        python = f"{folder}/bin/python"
        steps = {
            "no environment": [cell.python, "-m", "venv", folder],
            "not installed": [python, "-m", "pip", "install", "-q", *versions, *TOOLS, "-e", "."],
            "": [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        }
        for failure, command in steps.items():
            try:
                done = subprocess.run(
                    command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=_SECONDS
                )
            except subprocess.TimeoutExpired:
                return f"{failure or 'tests'}: no end after {_SECONDS} s"
            said = (done.stdout.strip() or done.stderr.strip() or "no output").splitlines()[-1]
            if done.returncode and failure:
                return f"{failure}: {said}"
        return re.sub(r" in [\d.]+s.*", "", said)


def _print(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
