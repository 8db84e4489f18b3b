"""Batch scripts: what Slurm is asked for, what bash makes of them, and what is refused."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tfdist.cli import main
from tfdist.errors import ConfigError
from tfdist.render import slurm
from tfdist.render.slurm import sbatch
from tfdist.render.slurm_job import SlurmJob

SPECS = Path(__file__).parents[2] / "cluster_specs"
RENDER = "render slurm --workers 2 --name j --time 60"
EVERYTHING: dict[str, Any] = {
    "ps": 1,
    "evaluator": 1,
    "gpus_per_node": 4,
    "workers_per_node": 2,
    "workers": 4,
    "setup": ["module load cuda", "source 'my venv/bin/activate'"],
    "stage": [("/data/my set", "/scratch/set")],
    "log_dir": "my logs",
    "host_suffix": "-ib0",
    "time": "1-00",
}


def job(**changes: Any) -> SlurmJob:
    arguments: dict[str, Any] = {"name": "job", "command": ["tfdist", "train"], "workers": 2}
    return SlurmJob(**arguments | changes)


def asked(**changes: Any) -> list[list[str]]:
    """The options of each part of a job."""
    lines = sbatch(job(**changes)).splitlines()
    parts: list[list[str]] = [[]]
    for line in lines:
        word = line.removeprefix("#SBATCH ")
        if word == "hetjob":
            parts.append([])
        elif word != line:
            parts[-1].append(word)
    return parts


def test_a_worker_a_node() -> None:
    (options,) = asked(workers=4, cpus=8, memory="16Gi")
    for option in (
        "--job-name=job",
        "--ntasks=4",
        "--nodes=4",
        "--ntasks-per-node=1",
        "--cpus-per-task=8",
        "--mem=16384M",
        "--requeue",
        "--signal=TERM@120",
        "--output=%x-%j.out",
    ):
        assert option in options
    assert "TFDIST_ROLES" not in sbatch(job())
    assert not any(option.startswith(("--gres", "--time")) for option in options)


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
@pytest.mark.parametrize("per_node", [1, 2, 4, 8])
def test_gpus_of_a_node(gpus: int, per_node: int) -> None:
    if per_node > gpus:
        with pytest.raises(ConfigError, match=r"render\(--gpus-per-node\): \d cannot be shared"):
            job(workers=8, gpus_per_node=gpus, workers_per_node=per_node)
        return
    (options,) = asked(workers=8, gpus_per_node=gpus, workers_per_node=per_node)
    assert f"--gres=gpu:{gpus}" in options
    assert f"--nodes={8 // per_node}" in options
    assert f"--ntasks-per-node={per_node}" in options
    assert f"--mem={8192 * per_node}M" in options
    changes = {"workers": 8, "gpus_per_worker": gpus // per_node, "workers_per_node": per_node}
    assert asked(**changes)[0] == options


def test_tasks_beside_the_workers_go_where_there_are_cpus() -> None:
    (options,) = asked(ps=1, cpus=8, memory="16G", evaluator=1)
    assert {"--ntasks=5", "--mem-per-cpu=2048M", "--cpus-per-task=8"} <= set(options)
    assert not any(option.startswith(("--nodes", "--ntasks-per", "--mem=")) for option in options)
    script = sbatch(job(ps=1, evaluator=1))
    assert "\nexport TFDIST_ROLES=chief:1,ps:1,evaluator:1,worker:2\n" in script
    assert "\nexport TFDIST_ROLES=evaluator:1,worker:2\n" in sbatch(job(evaluator=1))


@pytest.mark.parametrize("changes", [{"gpus_per_worker": 2}, {"workers_per_node": 1}])
def test_workers_have_nodes_of_their_own_beside_a_ps(changes: dict[str, int]) -> None:
    others, workers = asked(
        ps=2, workers=4, time="60", partition="gpu", options=["--exclusive"], **changes
    )
    assert "--ntasks=3" in others and {"--ntasks=4", "--nodes=4"} <= set(workers)
    assert ("--gres=gpu:2" in workers) == ("gpus_per_worker" in changes)
    assert not any(option.startswith("--gres") for option in others)
    # Each part has its own limit, signal and so on.
    same = {"--time=60", "--partition=gpu", "--exclusive", "--requeue", "--signal=TERM@120"}
    same |= {"--mem-per-cpu=2048M", "--cpus-per-task=4"}
    assert same <= set(others) and same <= set(workers)
    script = sbatch(job(ps=2, **changes))
    assert "--het-group=0,1" in script
    assert 'SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK_HET_GROUP_0"' in script


def test_options_of_the_queue_come_last() -> None:
    (options,) = asked(
        time="2-12:00:00",
        grace=300,
        partition="a,b",
        account="team",
        qos="high",
        options=["--exclusive", "--signal=USR1@9", "-C a100"],
    )
    assert options[-3:] == ["--exclusive", "--signal=USR1@9", "-C a100"]
    named = {"--time=2-12:00:00", "--partition=a,b", "--account=team", "--qos=high"}
    assert named | {"--signal=TERM@300"} <= set(options)
    assert "tfdist task --grace 250 " in sbatch(job(grace=300))


@pytest.mark.parametrize(
    "time",
    ["3", "3:0", "0:3:0", "0-1", "0-0:3", "0-0:2:1", "2:01", "90", "12:00:00", "2-0", "UNLIMITED"],
)
def test_times_that_leave_time_to_save(time: str) -> None:
    assert f"--time={time}" in asked(time=time)[0]


@pytest.mark.parametrize("time", ["2", "2:00", "0:2:00", "0-0:2", "0:120", "1:59", "0"])
def test_times_that_leave_none(time: str) -> None:
    with pytest.raises(ConfigError, match=r"render\(--time\): .* the last 120 are to save in"):
        job(time=time)
    job(time=time, grace=1) if time != "0" else None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "my job"}, "render(--name): 'my job' is not a name of"),
        ({"name": "a/b"}, "render(--name): "),
        ({"name": "job\n"}, "render(--name): "),
        ({"name": "-j"}, "render(--name): "),
        ({"name": "j" * 64}, "render(--name): "),
        ({"command": []}, "render: no command given; add '-- COMMAND'"),
        ({"workers": 0}, "render(--workers): 0 is not a whole number of 1 or more"),
        ({"cpus": 0}, "render(--cpus): 0 is not"),
        ({"grace": 0}, "render(--grace): 0 is not"),
        ({"memory": "500m"}, "render(--memory): '500m' is not an amount of memory"),
        ({"memory": "0G"}, "render(--memory): '0G'"),
        ({"memory": "8 GB"}, "render(--memory): '8 GB'"),
        ({"time": "1h"}, "render(--time): '1h' is not a time such as"),
        ({"time": "1:2:3:4"}, "render(--time): "),
        ({"time": "1-"}, "render(--time): "),
        ({"partition": "two words"}, "render(--partition): "),
        ({"account": "$(id)"}, "render(--account): "),
        ({"qos": ""}, "render(--qos): "),
        ({"host_suffix": "ib 0"}, "render(--host-suffix): "),
        ({"options": ["exclusive"]}, "render(--sbatch): 'exclusive' is not an option of sbatch"),
        ({"options": ["--a\n#SBATCH --b"]}, "render(--sbatch): "),
        ({"setup": ["a\nb"]}, "render(--setup): "),
        ({"setup": [" "]}, "render(--setup): "),
        ({"workers": 3, "workers_per_node": 2}, "render(--workers): 3 is not a multiple"),
        ({"workers_per_node": 0}, "render(--workers-per-node): 0 is not"),
        (
            {"gpus_per_node": 4, "gpus_per_worker": 8},
            "render(--gpus-per-worker): 8 for 1 worker a node is more than --gpus-per-node, 4",
        ),
        (
            {"gpus_per_node": 4, "gpus_per_worker": 3, "workers_per_node": 2},
            "render(--gpus-per-worker): 3 for 2 workers a node is more",
        ),
        ({"gpus_per_node": 3, "workers_per_node": 2}, "render(--gpus-per-node): 3 cannot be"),
        ({"container": "docker", "image": "i"}, "render(--container): 'docker' is not one of"),
        ({"container": "pyxis"}, "render(--image): missing; --container needs it"),
        ({"image": "i"}, "render(--container): missing; --image needs it"),
        ({"container": "pyxis", "image": "a b"}, "render(--image): 'a b'"),
        ({"mounts": ["/a:/b"]}, "render(--container): missing; --mount needs it"),
        ({"container": "pyxis", "image": "i", "mounts": ["a:/b"]}, "render(--mount): 'a:/b'"),
        ({"container": "pyxis", "image": "i", "mounts": ["/a:/b,/c:/d"]}, "render(--mount): "),
        ({"stage": [("data", "/scratch")]}, "render(--stage): 'data:/scratch' is not like"),
        ({"stage": [("/data", "/")]}, "render(--stage): "),
        ({"expand": ["A-B"]}, "render(--expand): 'A-B' is not the name of a variable"),
        ({"expand": ["ID"]}, "render(--expand): 'ID' is neither in the command nor in a path; "),
        (
            {"expand": ["SLURM_PROCID"], "command": ["x", "$SLURM_PROCID"]},
            "render(--expand): 'SLURM_PROCID' is not the same in all tasks",
        ),
        ({"stage": [("$TMPDIR/a", "/b")]}, "render(--stage): '$TMPDIR/a:/b' is not like"),
    ],
)
def test_what_cannot_be_asked_for(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job(**changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (RENDER, "tfdist: render: no command given"),
        (f"{RENDER} --cpus 0.5 -- x", "tfdist: render slurm: argument --cpus: '0.5' is not an"),
        (f"{RENDER} --stage /data -- x", "tfdist: render slurm: argument --stage: '/data' is not"),
        (f"{RENDER} --container docker --image i -- x", "tfdist: render slurm: argument --contain"),
        (f"{RENDER} --gpus-per-node 1 --workers-per-node 2 -- x", "tfdist: render(--gpus-per-node"),
        ("render slurm --name j -- x", "tfdist: render slurm: the following arguments are requir"),
    ],
)
def test_mistakes_are_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "warned"),
    [("", True), ("--time 60", False), ("--sbatch=--time=60", False), ("--sbatch=-t60", False)],
)
def test_a_job_without_a_time_limit_is_warned_of(
    words: str, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"render slurm --workers 2 --name j {words} -- x".split()) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("tfdist: render(--time): not given; ") == warned
    assert captured.err.count("\n") == warned
    assert captured.out.startswith("#!/bin/bash\n# tfdist render slurm --workers 2 ")


def test_variables_that_stay_as_they_are_written_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*RENDER.split(), "--log-dir", "$A/x", "--", "x", "${B}", "$A$C"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tfdist: render(--expand): not given for '${B}', '$A', '$C', which the ")
    assert line.endswith("add --expand B --expand A --expand C")
    given = ["--expand", "B", "--", "x", "${B}"]
    assert main([*RENDER.split(), *given]) == 0
    assert capsys.readouterr().err == ""
    # A shell fills in its own words.
    assert main([*RENDER.split(), "--", "bash", "-c", "echo $HOME"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("--comment=two words", '--comment="two words"'),
        ("--comment two words", '--comment "two words"'),
        ("--comment=it's", '--comment="it\'s"'),
        ('--comment=a \\ "b" #c', '--comment="a \\\\ \\"b\\" #c"'),
        ('--comment="two words"', '--comment="two words"'),
        ("-C a100", "-C a100"),
        ("--exclusive --mem=0", "--exclusive --mem=0"),
        ("--exclusive", "--exclusive"),
    ],
)
def test_the_value_of_an_option_is_one_word(given: str, written: str) -> None:
    assert asked(options=[given])[0][-1] == written


@pytest.mark.parametrize("kind", ["slurm", "jobset"])
def test_what_is_not_text_is_refused(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["render", kind, "--workers", "2", "--name", "j", "--", "x", "a\udcff"]
    assert main(words) == 2
    told = capsys.readouterr()
    assert told.err.startswith("tfdist: render: argument 8, 'a\\udcff', is not text in UTF-8")
    assert told.err.count("\n") == 1 and told.out == ""


def test_a_command_of_several_lines_stays_a_comment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RENDER.split(), "--", "python", "-c", "import os\nprint(1)"]) == 0
    assert "\n# print(1)'\n" in capsys.readouterr().out.partition("#SBATCH")[0]


def test_the_command_survives_the_shell() -> None:
    script = sbatch(job(command=["python", "my script.py", "--name=$HOME"]))
    task = 'task --grace 100 --record "$ends" -- \\\n'
    assert f"    tfdist {task}    python 'my script.py' '--name=$HOME' || code=$?" in script
    script = sbatch(job(command=["/my venv/bin/tfdist", "train"]))
    assert f"    '/my venv/bin/tfdist' {task}    '/my venv/bin/tfdist' train || code" in script


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "expanded": {"command": ["x", "$ID"], "expand": ["ID"]},
    "all": EVERYTHING,
    "staged": {"stage": EVERYTHING["stage"], "setup": EVERYTHING["setup"]},
    "apptainer": {
        "container": "apptainer",
        "image": "my.sif",
        "mounts": ["/data:/d"],
        "gpus_per_worker": 1,
    },
    "pyxis": {"container": "pyxis", "image": "team/tfdist:1", "mounts": ["/data:/d"]},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_bash_reads_the_script(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "job.sbatch"
    path.write_text(sbatch(job(**SHAPES[shape])))
    subprocess.run(["bash", "-n", path], check=True)
    if shutil.which("shellcheck"):
        # A file to source is not there; a program in quotes is for another shell; a trap calls.
        subprocess.run(["shellcheck", "--exclude=SC1091,SC2016,SC2317", path], check=True)


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.sbatch")), ids=lambda path: path.name)
def test_a_shipped_script_has_a_time_limit(path: Path) -> None:
    assert "\n#SBATCH --time=" in path.read_text()


class Stage:
    """A folder with programs in place of Slurm's, which note how they are called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()

    def program(self, name: str, body: str) -> None:
        note = f'printf "%s\\n" "{name} $*" >>{shlex.quote(str(self.folder / "calls"))}'
        (self.bin / name).write_text(f"#!/bin/bash\n{note}\n{body}\n")
        (self.bin / name).chmod(0o755)

    def run(self, env: dict[str, str] | None = None, **changes: Any) -> int:
        script = self.folder / "job.sbatch"
        script.write_text(sbatch(job(**changes)))
        self.result = subprocess.run(
            [str(shutil.which("bash")), script],
            cwd=self.folder,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **(env or {}),
                "PATH": f"{self.bin}:/usr/bin:/bin",
                "SLURM_CPUS_PER_TASK": "1",
                "SLURM_JOB_ID": "7",
                "SLURM_JOB_NAME": "job",
                "SLURM_JOB_NUM_NODES": "2",
                "SLURM_CPUS_PER_TASK_HET_GROUP_0": "1",
                "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1",
                "SLURM_JOB_NUM_NODES_HET_GROUP_1": "2",
            },
        )
        return self.result.returncode

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        calls = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return calls


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.mark.parametrize(
    ("code", "noted", "end", "again"),
    [
        (0, "", 0, False),
        (1, "", 1, False),
        (201, "", 1, False),
        (202, "", 2, False),
        (138, "", 138, True),
        (137, "", 137, True),
        (128, "", 143, True),
        # A user's mistake, after which a task that was stuck had to be killed.
        (137, "201", 1, False),
    ],
)
def test_the_job_goes_back_into_the_queue_by_exit_code(
    stage: Stage, code: int, noted: str, end: int, again: bool
) -> None:
    ends = stage.folder / ".job-7.ends"
    stage.program("srun", f"[ -z '{noted}' ] || echo {noted} >>{ends}; exit {code}")
    stage.program("scontrol", "")
    assert stage.run() == end
    assert ("scontrol requeue 7" in stage.calls()) == again
    if not again:
        assert not list(stage.folder.glob(".job-7.*"))


def test_ten_failures_are_allowed_and_any_number_of_time_limits(stage: Stage) -> None:
    stage.program("scontrol", "")
    for number in range(1, 12):
        stage.program("srun", 'touch "$TFDIST_SAVED"; exit 128')
        assert stage.run() == 143
        assert "scontrol requeue 7" in stage.calls()
        stage.program("srun", "exit 138")
        assert stage.run() == 138
        assert ("scontrol requeue 7" in stage.calls()) == (number <= 10)
    assert not list(stage.folder.glob(".job-7.*"))


def test_ten_stops_are_allowed_without_a_new_checkpoint(stage: Stage) -> None:
    """Else a job that ends with 143 by itself, or saves nothing, would come back without end."""
    stage.program("scontrol", "")
    for number in range(1, 12):
        stage.program("srun", "exit 128")
        assert stage.run() == 143
        assert ("scontrol requeue 7" in stage.calls()) == (number <= 10)
        if number == 5:  # What an earlier run has saved does not count twice.
            stage.program("srun", 'touch "$TFDIST_SAVED"; exit 128')
            assert stage.run() == 143
            assert "scontrol requeue 7" in stage.calls()
    assert not list(stage.folder.glob(".job-7.*"))


def test_setup_comes_before_the_tasks(stage: Stage) -> None:
    stage.program("srun", 'echo "$WHO" >who')
    assert stage.run(setup=["WHO=me", "export WHO"]) == 0
    assert (stage.folder / "who").read_text() == "me\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("false", "false: failed with 1"),
        ("module load cuda", "module load cuda: failed with 3"),
        ("source ./not-there", "source ./not-there: failed with 1"),
        ("source ./fails", "source ./fails: failed with 4"),
        ("export A=b; cd /not/there", "export A=b; cd /not/there: failed with 1"),
    ],
)
def test_a_line_of_the_setup_that_fails_ends_the_job(stage: Stage, line: str, message: str) -> None:
    stage.program("srun", "")
    stage.program("scontrol", "")
    (stage.folder / "fails").write_text("return 4\n")
    assert stage.run(setup=["module() { return 3; }", line]) == 2
    assert stage.calls() == []
    told = f"tfdist: render(--setup): {message}; nothing was started"
    assert stage.result.stderr.splitlines()[-1] == told


def test_what_fails_inside_of_a_line_of_the_setup_does_not_end_the_job(stage: Stage) -> None:
    stage.program("srun", 'echo "$WHO" >who; exit 201')
    (stage.folder / "activate").write_text("false\nWHO=$(false; echo me)\nexport WHO\n")
    setup = [
        "module() { false; true; }",
        "module load cuda",
        "source ./activate",
        "[ -d venv ] && source venv/bin/activate",
        "false || true",
    ]
    # And the command's own failure is as it was.
    assert stage.run(setup=setup) == 1
    assert (stage.folder / "who").read_text() == "me\n"


WORDS = '; : "${IFS}" \'\\ $(touch broken) `touch broken` ${HOME} $HOME !x *'


def test_only_the_variables_that_are_asked_for_are_filled_in(stage: Stage) -> None:
    stage.program("srun", 'printf "%s\\n" "$@" >words')
    command = ["x", f"a{WORDS}b", "runs/$ID/${ID}x$IDX", "", "$(ID)"]
    env = {"ID": "a  b", "IDX": "no", "HOME": "/no"}
    asked = {"command": command, "log_dir": "logs/$ID", "expand": ["ID"]}
    assert stage.run(env, **asked) == 0
    words = (stage.folder / "words").read_text().splitlines()
    assert words[words.index("--log-dir") + 1] == "logs/a  b"
    assert words[words.index("--") + 1 :] == [
        *("x", f"a{WORDS}b", "runs/a  b/a  bx$IDX", "", "a  b")
    ]
    assert not (stage.folder / "broken").exists()


def test_a_variable_that_is_not_set_ends_the_job(stage: Stage) -> None:
    stage.program("srun", "")
    assert stage.run(command=["x", "$TMPDIR/y"], expand=["TMPDIR"]) == 2
    assert stage.calls() == []
    assert stage.result.stderr.startswith("tfdist: render(--expand): $TMPDIR is not set in this ")
    asked = {"command": ["x", "$TMPDIR/y"], "expand": ["TMPDIR"], "setup": ["TMPDIR=/tmp"]}
    assert stage.run(**asked) == 0


@pytest.mark.parametrize("container", ["pyxis", "apptainer"])
def test_a_mount_is_not_run_by_the_shell(stage: Stage, container: str) -> None:
    stage.program("srun", "")
    mounts = ["/a$(touch${IFS}broken):/b", '/`id`:/"$HOME"', "$TMPDIR/x:/c"]
    asked = {"container": container, "image": "i", "mounts": mounts, "expand": ["TMPDIR"]}
    assert stage.run({"TMPDIR": "/t"}, **asked) == 0
    (call,) = stage.calls()
    assert all(mount in call for mount in [*mounts[:2], "/t/x:/c"])
    assert not (stage.folder / "broken").exists()


@pytest.mark.parametrize("changes", [{}, {"ps": 1, "gpus_per_worker": 1}])
def test_data_are_copied_once_a_node(stage: Stage, changes: dict[str, int]) -> None:
    source, target = stage.folder / "my data", stage.folder / "disk" / "data"
    source.mkdir()
    (source / "rows").write_text("1")
    # As on one node: the program after srun's own options.
    stage.program("srun", 'while [[ "$1" == --* ]]; do shift; done; [ "$1" = tfdist ] || "$@"')
    asked = {**changes, "stage": [(str(source), f"{target}/")]}
    assert stage.run(**asked) == 0
    assert (target / "rows").read_text() == "1"
    calls = [call for call in stage.calls() if "bash -c" in call]
    nodes = [call.partition(" bash")[0] for call in calls]
    if changes:
        assert nodes == [
            "srun --het-group=0 --nodes=1 --ntasks=1 --ntasks-per-node=1",
            "srun --het-group=1 --nodes=2 --ntasks=2 --ntasks-per-node=1",
        ]
    else:
        assert nodes == ["srun --nodes=2 --ntasks=2 --ntasks-per-node=1"]
    # What is there stays: the job came back to the same node.
    (target / "rows").write_text("2")
    assert stage.run(**asked) == 0
    assert (target / "rows").read_text() == "2"
    assert [path.name for path in target.parent.iterdir()] == ["data"]


def test_a_copy_that_fails_ends_the_job(stage: Stage) -> None:
    stage.program("srun", 'while [[ "$1" == --* ]]; do shift; done; "$@"')
    stage.program("scontrol", "")
    stage.program("tfdist", "")
    assert stage.run(stage=[("/not/there", str(stage.folder / "data"))]) == 1
    assert not [call for call in stage.calls() if call.startswith(("srun --kill", "scontrol"))]


def test_containers(stage: Stage) -> None:
    stage.program("srun", 'while [[ "$1" == --* ]]; do shift; done; "$@"')
    stage.program("apptainer", "")
    stage.program("tfdist", "")
    assert stage.run(**SHAPES["apptainer"]) == 0
    here = stage.folder
    task = f"tfdist task --grace 100 --record {here}/.job-7.ends -- tfdist train"
    apptainer = f"apptainer exec --nv --bind {here} --pwd {here} --bind /data:/d my.sif {task}"
    assert stage.calls()[1:] == [apptainer]
    assert stage.run(**SHAPES["pyxis"]) == 0
    assert stage.calls()[0] == (
        "srun --kill-on-bad-exit=1 --distribution=block --label --container-image=team/tfdist:1 "
        f"--container-mounts={here}:{here},/data:/d --container-workdir={here} {task}"
    )


def test_a_log_a_task() -> None:
    script = sbatch(job(log_dir="my logs"))
    assert "--log-dir 'my logs' -- " in script and "--label" not in script


def test_nodes_that_share_the_disk_they_stage_to_do_not_disturb_each_other(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for number in range(50):
        (data / f"{number}").write_bytes(bytes(10_000))
    program = f'{slurm._STAGE}\nexec bash -c "$stage" stage {data} "$1"'
    for turn in range(10):
        target = tmp_path / "disk" / f"data{turn}"
        nodes = [
            subprocess.Popen(
                ["bash", "-c", program, "bash", str(target)],
                env={**os.environ, "SLURM_JOB_ID": "1", "SLURM_NODEID": str(node)},
            )
            for node in range(4)
        ]
        assert [node.wait(timeout=60) for node in nodes] == [0] * 4
        assert len(list(target.iterdir())) == 50
    assert len(list((tmp_path / "disk").iterdir())) == 10
