"""What is built to be installed elsewhere: the wheel and the source distribution."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import tfdist
from tests.chaos.harness import FULL

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(not FULL, reason="half a minute, and a network; with TFDIST_CHAOS=full"),
]

ROOT = Path(__file__).parents[1]
LEFT_OUT = (".*", "site", "runs", "data", "build", "dist", "*.egg-info", "__pycache__")
# In the repository and of no use to those who build from a source distribution.
OF_THE_REPOSITORY = {".ci", ".gitignore"}


def run(*command: object) -> str:
    """Runs a command where nothing of the repository is on Python's path."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd="/", env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with both. They are built of a copy: building writes into the source."""
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "source"

    def left_out(at: str, names: list[str]) -> set[str]:
        top = Path(at) == ROOT
        found = shutil.ignore_patterns(*(LEFT_OUT if top else ("__pycache__",)))(at, names)
        return found - {".dockerignore"}

    shutil.copytree(ROOT, source, ignore=left_out)
    run(sys.executable, "-m", "build", "--outdir", folder / "dist", source)
    return folder / "dist"


def test_the_source_distribution_has_all_of_the_repository(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as file:
        inside = {name.partition("/")[2] for name in file.getnames()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no repository, so no list of its files")
    there = {name for name in listed.stdout.split() if name.split("/")[0] not in OF_THE_REPOSITORY}
    assert {name for name in there if (ROOT / name).exists()} - inside == set()


def test_the_wheel_has_the_package_and_nothing_else(built):
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as file:
        inside = set(file.namelist())
    package = {str(p.relative_to(ROOT)) for p in (ROOT / "tfdist").rglob("*.py")}
    assert package - inside == set()
    assert {"tfdist/py.typed", "tfdist/data/digits/optdigits.npz"} <= inside
    assert {name.split("/")[0] for name in inside} == {
        "tfdist",
        f"tfdist-{tfdist.__version__}.dist-info",
    }


def test_the_wheel_answers_in_an_empty_environment(built, tmp_path):
    """Without any of its dependencies: what answers at once imports none."""
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path, with_pip=True)
    bin_ = tmp_path / "bin"
    run(bin_ / "python", "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    said = run(bin_ / "python", "-c", "import tfdist; print(tfdist.__version__, tfdist.__file__)")
    version, file = said.split()
    assert version == tfdist.__version__
    assert Path(file).is_relative_to(tmp_path)
    assert run(bin_ / "tfdist", "--version") == f"tfdist {version}\n"
    assert "usage: tfdist plan" in run(bin_ / "tfdist", "plan", "--help")
    assert "this is   worker/0" in run(bin_ / "tfdist", "check")
