"""Compares two revisions bit by bit: python -m tests.training.conformance.same_bits REVISION

Runs every feature of the suite under every strategy, once with the code and suite of REVISION and
once with this checkout's, and compares all that came out: history, weights, optimizer state,
evaluation and predictions. Prints a line a strategy with a hash of each side's weights and
optimizer state, then what differs; ends with 1 where something does. Features in which workers
overlap in no fixed order are left out.

    --features NAME,NAME    only these
    --folder FOLDER         where results are kept (runs/bits); a revision is not run twice
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from tests.tasks import ROOT
from tests.training.conformance.cell import read_cell
from tests.training.conformance.features import FEATURES
from tests.training.conformance.launch import Run
from tests.training.conformance.setting import STRATEGIES

PATIENCE = 300.0


def main() -> int:
    """Runs both sides and compares them; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("revision")
    parser.add_argument("--features", default="")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "bits")
    options = parser.parse_args()
    names = [n for n, feature in FEATURES.items() if not feature.asynchronous]
    if options.features:
        names = options.features.split(",")
    commit = _git("rev-parse", options.revision)
    before = options.folder.resolve() / commit[:12]
    tree = before / "tree"
    if not tree.exists():
        _git("worktree", "prune")
        _git("worktree", "add", "--detach", str(tree), commit)
    now = options.folder.resolve() / "now"
    shutil.rmtree(now, ignore_errors=True)
    different = 0
    for strategy in STRATEGIES:
        _run(tree, before / strategy, strategy, names)
        _run(ROOT, now / strategy, strategy, names)
        found = [n for n in names if not _same(before / strategy, now / strategy, n)]
        different += len(found)
        hashes = " ".join(_hash(side / strategy, names) for side in (before, now))
        print(f"{strategy:24}{len(names) - len(found)} of {len(names)} the same  {hashes}")
        for name in found:
            print(f"    {name}: {_how(before / strategy, now / strategy, name)}")
    return 1 if different else 0


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Prints the description as it is."""


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _run(tree: Path, folder: Path, strategy: str, names: list[str]) -> None:
    missing = [name for name in names if not (folder / "0" / name / "error.json").exists()]
    if missing:
        # Started, not forked: the other side has modules of its own.
        run = Run(folder, "tfdist", strategy, missing, tree, start=subprocess.Popen)
        if len(run.wait(PATIENCE)) < len(missing):
            print(run.report(), file=sys.stderr)


def _same(before: Path, now: Path, name: str) -> bool:
    return _how(before, now, name) == ""


def _how(before: Path, now: Path, name: str) -> str:
    """What differs in a cell; "" where nothing does."""
    try:
        (was, old_error), (are, error) = (read_cell(side / "0" / name) for side in (before, now))
    except FileNotFoundError:
        return "not finished"
    if (old_error and old_error["type"]) != (error and error["type"]):
        return f"{old_error and old_error['message']} before, {error and error['message']} now"
    for key in (*was, *(key for key in are if key not in was)):
        if key not in was or key not in are or was[key].tobytes() != are[key].tobytes():
            return key
    return ""


def _hash(folder: Path, names: list[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        try:
            values, _ = read_cell(folder / "0" / name)
        except FileNotFoundError:
            continue
        for key, value in values.items():
            if key.startswith(("weight", "optimizer", "after")):
                digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
