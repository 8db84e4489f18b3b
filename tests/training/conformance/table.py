"""Writes docs/features.md: every feature under every strategy, tfdist beside plain Keras.

    python -m tests.training.conformance.table [FOLDER] [--only-write]

Runs the suite's cells with both loops and keeps their values in FOLDER (runs/features); cells
that are there already are not run again. Plain Keras may hang: a run that makes no progress for
a minute is ended, the feature it hung in is marked, and the rest goes on.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

from tests.tasks import ROOT
from tests.training.conformance.cell import read_cell
from tests.training.conformance.compare import differences
from tests.training.conformance.features import FEATURES
from tests.training.conformance.launch import Run
from tests.training.conformance.plan import SLICED, WHOLE, reference
from tests.training.conformance.setting import STRATEGIES, Feature

PATIENCE = {"tfdist": 240.0, "keras": 60.0}
OUTPUT = ROOT / "docs" / "features.md"
HEAD = """# Features × strategies

Each feature is a small model trained for two epochs of six batches, the last one ragged, on the
same global batches with plain Keras on one device and with `tfdist.Trainer` under each strategy
(two replicas, or two workers and one parameter server). Losses and metrics of each epoch,
weights, optimizer state, evaluation and predictions are compared.

In each field: **tfdist**, then plain Keras `fit` in the same place.

- **=**: the exact bits of plain Keras on one device. **≈**: the same up to rounding (float32: below
  1e-5 of the largest value compared; half precision and ill-conditioned models: the tolerance of
  the suite's table). parameter_server takes its batches in turn here.
- **off by**: the largest difference, in units of the largest value compared (1 at least).
- **refused**: a `ConfigError` before the first step that explains what to do instead.
- **raises**: the exception. **hangs**: no end, nor any progress for a minute.

Plain Keras fails to start under MirroredStrategy where a first batch (of `fit` or of `evaluate`)
cannot be halved; the batches of `fit` here can. Features of the Trainer alone (functions of
InputContext, `accumulate_steps`, `compile_update`, `steps_per_call`) are measured in plain Keras
with its nearest equivalent: the whole dataset, `gradient_accumulation_steps`, its own update, one
step a call.

On one device TensorFlow's rewriting of arithmetic is off, here and in plain Keras: it does not add
in the same order each time that a graph is built, and plain Keras differs from itself in the last
bit.

Layers that compute on each replica's slice (plain BatchNormalization, Dropout) are compared with
one device that computes the same slices. Under parameter_server the statistics of
BatchNormalization are those of the worker that wrote last: each assigns its own batch's, and
nothing averages them. Written by
`python -m tests.training.conformance.table`, {versions}, CPU.
"""


def main(folder: Path, only_write: bool = False) -> None:
    """Runs what is missing, then writes the table."""
    if not only_write:
        for loop, where in _places():
            complete(folder, loop, where)
    versions = ", ".join(
        f"{name} {importlib.metadata.version(package)}"
        for name, package in (("TensorFlow", "tensorflow"), ("Keras", "keras"))
    )
    lines = [HEAD.format(versions=versions)]
    group = ""
    for feature in FEATURES.values():
        if feature.group != group:
            group = feature.group
            lines.append(f"\n## {group}\n\n| feature | {' | '.join(STRATEGIES)} |")
            lines.append("|---" * (1 + len(STRATEGIES)) + "|")
        fields = [
            f"**{verdict(folder, 'tfdist', feature, s)}**, {verdict(folder, 'keras', feature, s)}"
            for s in STRATEGIES
        ]
        lines.append(f"| {feature.title} | {' | '.join(fields)} |")
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text("\n".join(lines).replace("\n\n\n", "\n\n") + "\n")


def _places() -> list[tuple[str, str]]:
    loops = [(loop, strategy) for loop in ("tfdist", "keras") for strategy in STRATEGIES]
    return [WHOLE, SLICED, *loops]


def complete(folder: Path, loop: str, where: str) -> None:
    """Runs the features that have no result in `folder` yet."""
    place = folder / f"{loop}-{where}"
    missing = [name for name in FEATURES if not (place / "0" / name / "error.json").exists()]
    while missing:
        run = Run(place, loop, where, missing)
        done = run.wait(PATIENCE[loop])
        print(f"{loop} {where}: {len(done)} of {len(missing)}", flush=True)
        missing = [name for name in missing if name not in done]
        if missing and (run.stalled or not done):
            # What the processes stood in; the others have not been reached.
            stuck = place / "0" / missing.pop(0)
            stuck.mkdir(parents=True, exist_ok=True)
            kind = "hangs" if run.stalled else "a crash"
            error = {"type": kind, "message": run.report(), "traceback": ""}
            (stuck / "error.json").write_text(json.dumps(error))


def verdict(folder: Path, loop: str, feature: Feature, strategy: str) -> str:
    """One result in a few words."""
    cell = folder / f"{loop}-{strategy}" / "0" / feature.name
    try:
        if json.loads((cell / "error.json").read_text() or "null") is not None:
            error = json.loads((cell / "error.json").read_text())
            if error["type"] == "hangs":
                return "hangs"
            return "refused" if error["type"] == "ConfigError" else f"raises {error['type']}"
        values, _ = read_cell(cell)
        base = reference(feature, strategy)
        expected, _ = read_cell(folder / "-".join(base) / "0" / feature.name)
    except FileNotFoundError:
        return "not run"
    apart = max(differences(expected, values, feature.only or None).values(), default=0.0)
    if apart == 0:
        return "="
    if apart <= max(feature.tolerance, feature.one_device):
        return "≈"
    return "NaN or values missing" if apart == float("inf") else f"off by {apart:.0e}"


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    main(Path(given[0]) if given else ROOT / "runs" / "features", "--only-write" in sys.argv)
