"""Every example does what its first lines say."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RESULT = re.compile(r"test accuracy (0\.\d+), loss (\d\.\d+), (\d) replica")


def first_lines(path: Path) -> tuple[str, re.Match[str]]:
    """The command and the result that the docstring gives."""
    lines = [
        line.strip() for line in (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")
    ]
    command = next(line for line in lines if line.startswith(("python ", "tfdist ")))
    result = next(match for line in lines if (match := RESULT.search(line)))
    return command, result


def test_there_is_one_for_each_strategy():
    assert {path.stem for path in EXAMPLES} == {
        "mirrored",
        "central_storage",
        "multi_worker_mirrored",
        "parameter_server",
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_is_short(path):
    assert len(path.read_text().splitlines()) < 80


@pytest.mark.cluster
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs_as_its_first_lines_say(path, tmp_path):
    command, said = first_lines(path)
    environment = dict(os.environ, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    done = subprocess.run(
        shlex.split(command),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = RESULT.search(done.stdout)
    assert found, done.stdout[-2000:]
    assert found[3] == said[3]
    # The machine's arithmetic and, with parameter servers, chance move a few of 297 images.
    assert float(found[1]) == pytest.approx(float(said[1]), abs=0.05)
