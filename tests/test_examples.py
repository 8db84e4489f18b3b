"""Every example does what its first lines say."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TUTORIALS = sorted((ROOT / "examples" / "tutorials").glob("*.py"))
RESULT = re.compile(r"test accuracy (0\.\d+), loss (\d\.\d+), (\d) replica")


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def command(path: Path) -> list[str]:
    """The command that the docstring gives: its first indented lines."""
    _, _, rest = docstring(path).partition("\n    ")
    return shlex.split(rest.partition("\n\n")[0].replace("\\\n", " "))


def run(path: Path, **environment: str) -> str:
    """Runs the example as its docstring says; returns what it printed."""
    folder = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": folder, **environment}
    words = command(path)
    words[words.index("python") : words.index("python") + 1] = forked.python()
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


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


# What another one of them shows too.
LONG = (
    *("central_storage", "mirrored", "parameter_server"),
    *("custom_training", "distributed_keras", "multi_worker_with_keras"),
)


def each(paths: list[Path]) -> list[object]:
    marks = {True: pytest.mark.long, False: ()}
    return [pytest.param(path, marks=marks[path.stem in LONG], id=path.stem) for path in paths]


@pytest.mark.cluster
@pytest.mark.parametrize("path", each(EXAMPLES))
def test_it_runs_as_its_first_lines_say(path):
    said = RESULT.search(docstring(path))
    assert said, "the docstring has no result"
    printed = run(path)
    found = RESULT.search(printed)
    assert found, printed[-2000:]
    assert found[3] == said[3]
    # The machine's arithmetic and, with parameter servers, chance move a few of 297 images.
    assert float(found[1]) == pytest.approx(float(said[1]), abs=0.05)


def test_the_script_of_the_readme_learns_and_goes_on(tmp_path):
    text = (ROOT / "README.md").read_text()
    script = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    (tmp_path / "mine.py").write_text(script)
    said = re.search(r"\n    24/24 .* val_accuracy: (0\.\d+)", text)[1]

    def printed() -> subprocess.CompletedProcess[str]:
        return forked.run(
            [sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )

    first = printed()
    *_, accuracy = re.findall(r"val_accuracy: (0\.\d+)", first.stdout)
    assert first.returncode == 0, first.stderr[-4000:]
    # The machine's arithmetic moves a few of 297 images.
    assert float(accuracy) == pytest.approx(float(said), abs=0.03)
    assert float(accuracy) > 0.9
    assert (tmp_path / "mine.keras").exists()
    again = printed()
    assert again.returncode == 0
    assert "12 of 12 epochs are done in runs/mine; raise epochs" in again.stderr


def test_sorted_imports_of_the_readme_stay_in_order():
    text = (ROOT / "README.md").read_text()
    script = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=I", "-"]
    done = subprocess.run(command, input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.cluster
@pytest.mark.parametrize("path", each(TUTORIALS))
def test_the_tutorial_runs_and_learns(path, tmp_path):
    printed = run(path, TMPDIR=str(tmp_path))
    losses = [float(value) for value in re.findall(r"(?<!val_)loss: ([0-9.]+)", printed)]
    assert losses
    assert losses[-1] < losses[0]


def test_every_tutorial_is_in_the_documentation():
    text = (ROOT / "docs" / "tutorials.md").read_text()
    for path in TUTORIALS:
        assert re.search(r"https://\S+?(?=[,\s])", docstring(path)).group().rstrip(".,") in text
