"""The command: what it writes, and that the shipped scripts are what it prints."""

from __future__ import annotations

import contextlib
import io
import shlex
from pathlib import Path

import pytest

from tfdist.cli import main

SPECS = Path(__file__).parents[2] / "cluster_specs"
SCRIPTS = sorted(SPECS.glob("*.sbatch"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shipped_script_is_what_its_second_line_prints(path):
    command = next(line for line in path.read_text().splitlines() if line.startswith("# tfdist"))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(shlex.split(command)[2:]) == 0
    assert out.getvalue() == path.read_text()


def test_there_are_scripts_with_and_without_gpus():
    strategies = ("multi_worker_mirrored", "parameter_server")
    names = {f"{strategy}{end}.sbatch" for strategy in strategies for end in ("", "_gpus")}
    assert {path.name for path in SCRIPTS} == names


def test_help_lists_the_kinds(capsys):
    assert main(["render", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(
        f"\n  {kind} " in said for kind in ("jobset", "trainjob", "runtime", "tfjob", "slurm")
    )


@pytest.mark.parametrize("arguments", ["", "helm", "--workers 2 tfjob", "tfjobs"])
def test_the_kind_comes_first(arguments, capsys):
    assert main(["render", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert "allowed: jobset, trainjob, runtime, tfjob, slurm, then its flags" in captured.err
