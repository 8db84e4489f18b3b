"""Writes docs/programs.md: programs of keras.io in plain Keras, and under each strategy.

    python -m tests.training.programs.table [FOLDER] [--only-write]

What is in FOLDER (runs/programs) already is not run again.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

from tests.tasks import ROOT
from tests.training.conformance.cell import read_cell
from tests.training.conformance.compare import differences
from tests.training.conformance.launch import Run
from tests.training.conformance.plan import SLICED, WHOLE, reference
from tests.training.programs.all_programs import PROGRAMS
from tests.training.programs.program import Program

STRATEGIES = ("one_device", "mirrored", "multi_worker_mirrored")
PLACES = (WHOLE, SLICED, *(("tfdist", strategy) for strategy in STRATEGIES))
MODULE = "tests.training.programs.task"
PATIENCE = 300.0
OUTPUT = ROOT / "docs" / "programs.md"
HEAD = """# Programs of keras.io

Below are {count} programs after examples of [keras.io](https://keras.io/examples), each with its
example's kind of model, loss, step, optimizer and callbacks. They are newly written and do not copy
the examples' text: models and data are small, layers few, and everything is generated from seeds,
with nothing to download. Each is built and compiled under `strategy.scope()` and then trained by
`tfdist.Trainer(model).fit(...)`, where the example says `model.fit(...)`; nothing else differs
between the places. The programs are in
[tests/training/programs](../tests/training/programs).

Each trains for two epochs or more in plain Keras (`model.fit` on one device, the reference), and
through the Trainer on one device, under MirroredStrategy on two virtual CPUs, and on two processes
under MultiWorkerMirroredStrategy. History, weights, optimizer state, evaluation and predictions are
compared. On one device TensorFlow's rewriting of arithmetic is off in both: it does not add in the
same order each time that a graph is built, and plain Keras differs from itself in the last bit.

- **equal**: with the largest difference, in units of the largest value compared (1 at least); 0 is
  bit for bit. On several replicas a sum over a batch is made of two partial sums, so the last
  places differ; {allowed:.0e} is allowed.
- **differs**: runs and gives other numbers than one device, for the reason given.
- **refused**: a `ConfigError` in one line, quoted.

Arrays are taken in their order (`shuffle=False`): Keras draws its order from another generator.
*slices*: a layer normalises each replica's slice, or draws random numbers on it (Dropout, noise),
and the reference is one device that computes the two slices. *float64*: the program computes in
float64 in all places. Adam and RMSprop divide a gradient by its size, so a gradient that is 0 but
for rounding (the bias of attention's keys, a bias ahead of BatchNormalization) moves its weight by
the learning rate, in a direction that rounding gives; in float64 rounding stays below Adam's
epsilon.

Written by `python -m tests.training.programs.table`, which runs what is missing in `runs/programs`
(10 minutes on two cores), with {versions}, CPU. `TFDIST_CONFORMANCE=full python -m pytest
tests/training/test_programs.py` checks the same; a short selection runs in `make test`.
"""


def main(folder: Path, only_write: bool = False) -> None:
    """Runs what is missing, then writes the table."""
    if not only_write:
        for loop, where in PLACES:
            complete(folder, loop, where)
    versions = ", ".join(
        f"{name} {importlib.metadata.version(package)}"
        for name, package in (("TensorFlow", "tensorflow"), ("Keras", "keras"))
    )
    lines = [HEAD.format(count=len(PROGRAMS), allowed=1e-5, versions=versions)]
    lines.append("| program | what it needs | one device | mirrored | two workers |")
    lines.append("|---|---|---|---|---|")
    for program in sorted(PROGRAMS.values(), key=lambda each: each.path):
        link = f"[{program.path}](https://keras.io/examples/{program.path}/)"
        fields = [link, _needs(program)]
        fields += [verdict(folder, program, strategy) for strategy in STRATEGIES]
        lines.append(f"| {' | '.join(fields)} |")
    OUTPUT.write_text("\n".join(lines) + "\n")


def _needs(program: Program) -> str:
    marks = [
        mark
        for mark, holds in (
            ("slices", program.reference == "slices"),
            ("float64", program.dtype == "float64"),
        )
        if holds
    ]
    return program.shows + (f" (*{', '.join(marks)}*)" if marks else "")


def complete(folder: Path, loop: str, where: str) -> None:
    """Runs the programs that have no result in `folder` yet.

    Raises:
        RuntimeError: Some did not finish; the message has the processes' last lines.
    """
    place = folder / f"{loop}-{where}"
    missing = [
        name
        for name, program in PROGRAMS.items()
        if (loop == "tfdist" or (loop, where) in {reference(program, s) for s in STRATEGIES})
        and not (place / "0" / name / "error.json").exists()
    ]
    if missing:
        run = Run(place, loop, where, missing, module=MODULE)
        done = run.wait(PATIENCE)
        print(f"{loop} {where}: {len(done)} of {len(missing)}", flush=True)
        if len(done) < len(missing):
            raise RuntimeError(run.report())


def verdict(folder: Path, program: Program, strategy: str) -> str:
    """One result in a few words."""
    values, error = read_cell(folder / f"tfdist-{strategy}" / "0" / program.name)
    if error is not None:
        what = "refused" if error["type"] == "ConfigError" else f"raises {error['type']}"
        return f"{what}: `{error['message'].splitlines()[0]}`"
    base = reference(program, strategy)
    expected, problem = read_cell(folder / "-".join(base) / "0" / program.name)
    assert problem is None, problem["traceback"]
    apart = max(differences(expected, values, program.only or None).values())
    if strategy in program.differs:
        return f"differs by {apart:.0e}: {program.differs[strategy]}"
    allowed = program.one_device if strategy == "one_device" else program.tolerance
    return f"equal ({apart:.0e})" if 0 < apart <= allowed else _or_off(apart)


def _or_off(apart: float) -> str:
    return "equal (0)" if apart == 0 else f"**off by {apart:.0e}**"


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    main(Path(given[0]) if given else ROOT / "runs" / "programs", "--only-write" in sys.argv)
