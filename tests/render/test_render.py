"""Batch scripts: what Slurm acts on, and that the shipped files are what render prints."""

import contextlib
import io
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tfdist.cli import main
from tfdist.errors import ConfigError
from tfdist.render.slurm import sbatch
from tfdist.render.workload import Workload

SPECS = Path(__file__).parents[2] / "cluster_specs"
MADE = sorted(SPECS.glob("*.sbatch"))


def workload(**changes):
    arguments = {"name": "job", "image": "image:1", "command": ["tfdist", "train"], "workers": 2}
    return Workload(**arguments | changes)


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_shipped_file_is_what_its_first_line_prints(path):
    command = next(line for line in path.read_text().splitlines() if line.startswith("# tfdist"))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(shlex.split(command)[2:]) == 0
    assert out.getvalue() == path.read_text()


def test_there_are_files_for_each_place():
    assert len(MADE) == 2


def test_sbatch_asks_for_every_task_and_names_the_roles():
    script = sbatch(workload(workers=2, ps=1, cpus="8", memory="16Gi", gpus_per_worker=1))
    for line in (
        "#SBATCH --ntasks=4",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --mem-per-cpu=2048M",
        "#SBATCH --gpus-per-task=1",
        "export TFDIST_ROLES=chief:1,ps:1,worker:2",
    ):
        assert line in script.splitlines()
    script = sbatch(workload(workers=4))
    assert "#SBATCH --nodes=4" in script
    assert "TFDIST_ROLES" not in script


@pytest.mark.parametrize(
    ("code", "restarts", "requeued"),
    [
        (0, 0, False),
        (201, 0, False),
        (202, 0, False),
        (1, 0, False),
        (138, 0, True),
        (143, 9, True),
        (138, 10, False),
    ],
)
def test_sbatch_requeues_by_exit_code(tmp_path, code, restarts, requeued):
    for name, body in (("srun", f"exit {code}"), ("scontrol", f'echo "$@" > {tmp_path}/asked')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    result = subprocess.run(
        [shutil.which("bash"), "-c", sbatch(workload())],
        env={
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "SLURM_CPUS_PER_TASK": "1",
            "SLURM_JOB_ID": "7",
            "SLURM_RESTART_COUNT": str(restarts),
        },
    )
    assert result.returncode == (code if code < 200 else code - 200)
    asked = tmp_path / "asked"
    assert asked.exists() == requeued
    if requeued:
        assert asked.read_text() == "requeue 7\n"


def test_a_command_of_several_lines_stays_a_comment(capsys):
    command = ["python", "-c", "import os\nprint(1)"]
    assert main(["render", "slurm", *["--workers", "2", "--name", "j", "--"], *command]) == 0
    head = capsys.readouterr().out.partition("#SBATCH")[0]
    assert "\n# print(1)'\n" in head


def test_command_survives_the_shell():
    script = sbatch(workload(command=["python", "my script.py", "--name=$HOME"]))
    assert "    tfdist task -- \\\n    python 'my script.py' '--name=$HOME' || code=$?" in script
    script = sbatch(workload(command=["/my venv/bin/tfdist", "train"]))
    assert "    '/my venv/bin/tfdist' task -- \\\n    '/my venv/bin/tfdist' train || code" in script


def test_what_slurm_cannot_ask_for():
    with pytest.raises(ConfigError, match=r"render\(--memory\): '500m'"):
        sbatch(workload(memory="500m"))
    with pytest.raises(ConfigError, match=r"render\(--cpus\): '0.5'"):
        sbatch(workload(cpus="0.5"))
