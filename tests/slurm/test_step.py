"""What the tasks of a real step see, and what its end makes of the job; nothing is trained."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from tests.chaos.harness import FULL
from tests.slurm.batch import Batches
from tests.slurm.two_nodes import GPUS, TwoNodes
from tfdist.cluster import expand_hostlist

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

SEES = """
import json, os, pathlib, subprocess, sys
import tfdist
from tfdist.cluster.slurm_gpus import share_of_gpus
from tfdist.runtime.threads import limit_threads
cluster = tfdist.Cluster.from_environment()
share = share_of_gpus(os.environ)
limit_threads()
met = subprocess.run([sys.executable, "-m", "tfdist", "check", "--wait", "60"], capture_output=True)
print(met.stdout.decode(), met.stderr.decode(), file=sys.stderr)
seen = {
    "host": os.uname().nodename,
    "cluster": cluster.to_tf_config(),
    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES") if share is None else share,
    "threads": os.environ.get("TF_NUM_INTRAOP_THREADS"),
    "data": (pathlib.Path(os.environ["DISK"]) / "rows").read_text(),
    "set up": os.environ.get("SET_UP"),
    "met": met.returncode,
}
pathlib.Path(f"seen-{cluster.task.type}-{cluster.task.index}.json").write_text(json.dumps(seen))
"""
# The first task fails for good; the other one ignores SIGTERM, as TensorFlow that waits does.
STUCK = """
import os, signal, sys, time
if os.environ["SLURM_PROCID"] == "0":
    time.sleep(1)
    sys.exit(int(sys.argv[1]))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(120)
"""


def seen(folder: Path) -> dict[str, dict[str, str]]:
    paths = folder.glob("seen-*.json")
    return {path.stem.removeprefix("seen-"): json.loads(path.read_text()) for path in paths}


def staged(batches: Batches) -> dict[str, object]:
    (batches.folder / "data").mkdir()
    (batches.folder / "data" / "rows").write_text("1 2 3")
    disk = batches.folder / "disk" / "data"
    return {"env": {"DISK": disk}, "stage": [(str(batches.folder / "data"), str(disk))]}


def test_the_words_of_options_and_commands_arrive_as_they_were_written(batches: Batches) -> None:
    code = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
    comment = 'it\'s "two" words \\ #1'
    job = batches.submit(
        [sys.executable, "-c", code, "$SLURM_JOB_ID-$SLURM_ARRAY_TASK_ID", "$(id) $HOME"],
        options=[f"--comment={comment}", "--array=3"],
        expand=["SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID"],
        workers=1,
    )
    assert job.end() == 0, job.text()
    (path,) = batches.folder.glob("*-3")
    assert path.read_text() == "$(id) $HOME"
    assert f"Comment={comment}" in batches.nodes.run("scontrol", "show", "job", job.number)


def test_a_setup_that_fails_starts_nothing(batches: Batches) -> None:
    job = batches.submit(["touch", "started"], setup=["module() { return 3; }", "module load x"])
    assert job.end() == 2, job.text()
    assert job.find(r"^tfdist: render\(--setup\): module load x: failed with 3; nothing was ")
    assert not (batches.folder / "started").exists() and not job.restarts


def test_two_workers_a_node_share_its_gpus(batches: Batches) -> None:
    job = batches.submit(
        [sys.executable, "-c", SEES],
        workers=4,
        workers_per_node=2,
        gpus_per_node=GPUS,
        cpus=3,
        host_suffix="-fast",
        setup=["export SET_UP='by the script'"],
        log_dir="logs",
        **staged(batches),
    )
    assert job.end() == 0, job.text()
    found = seen(batches.folder)
    assert sorted(found) == [f"worker-{index}" for index in range(4)]
    for index in range(4):
        here = found[f"worker-{index}"]
        config = json.loads(here["cluster"])
        assert here["host"] == ("node9", "node10")[index // 2]
        # The node's name, but for the network.
        hosts = [address.partition(":")[0] for address in config["cluster"]["worker"]]
        assert hosts == ["node9-fast", "node9-fast", "node10-fast", "node10-fast"]
        assert here["gpus"] == str(index % 2)
        assert here["threads"] == "3"
        assert (here["data"], here["set up"]) == ("1 2 3", "by the script")
        # All four found each other at these addresses.
        assert here["met"] == 0, (batches.folder / "logs" / f"worker-{index}.log").read_text()


def test_a_heterogeneous_job(batches: Batches) -> None:
    """Slurm sorts the nodes of its step by name: here the first part is on the last one."""
    # Also where Slurm reserves no ports, as it does here.
    job = batches.submit(
        ["env", "-u", "SLURM_STEP_RESV_PORTS", sys.executable, "-c", SEES],
        ps=1,
        workers=2,
        workers_per_node=2,
        gpus_per_node=GPUS,
        cpus=2,
        log_dir="logs",
        **staged(batches),
    )
    assert job.end() == 0, job.text()
    found = seen(batches.folder)
    where = {name: here["host"] for name, here in found.items()}
    assert where == {
        "chief-0": "node10",
        "ps-0": "node10",
        "worker-0": "node9",
        "worker-1": "node9",
    }
    gpus = {name: here["gpus"] for name, here in found.items()}
    assert gpus == {"chief-0": None, "ps-0": None, "worker-0": "0", "worker-1": "1"}
    assert {here["threads"] for here in found.values()} == {"2"}
    assert {here["met"] for here in found.values()} == {0}


def test_a_mistake_beside_a_task_that_is_stuck_ends_the_job(batches: Batches) -> None:
    job = batches.submit([sys.executable, "-c", STUCK, "1"])
    assert job.end() == 1, job.text()
    assert job.restarts == 0
    # srun itself tells of the task that it had to kill.
    assert job.find("task 1: Killed"), job.text()
    assert not list(batches.folder.glob(".*.ends"))


@pytest.mark.skipif(not FULL, reason="ten seconds; with TFDIST_CHAOS=full")
def test_both_nodes_have_the_secret_of_the_run(batches: Batches) -> None:
    program = 'echo "SECRET $TFDIST_SECRET"; [ $SLURM_PROCID = 0 ] || eval "$OTHER"; "$@"'
    command = ["bash", "-c", program, "bash", sys.executable, "-m", "tfdist", "check"]
    runs = [batches.submit([*command, "--wait", "60"], name=name) for name in ("one", "two")]
    secrets = []
    for job in runs:
        assert job.end() == 0, job.text()
        first, second = (line.partition("SECRET ")[2] for line in job.find(": SECRET "))
        assert first == second and len(first) == 64
        secrets.append(first)
    assert secrets[0] != secrets[1]
    # A task that has another one is not let in.
    env = {"OTHER": "export TFDIST_SECRET=guessed"}
    job = batches.submit([*command, "--wait", "5"], env=env, name="three")
    assert job.end() == 2, job.text()
    assert job.find(r"tfdist: .* worker/\d at .* belongs to another cluster, job or secret")


def test_host_lists_are_those_of_scontrol(nodes: TwoNodes) -> None:
    draw = random.Random("host lists")
    for _ in range(20):
        text = "".join(
            f"{name}[{draw.choice(['1-2', '3,1', '08-11', '5', '2,4-5'])}]"
            for name in "abcd"[: draw.randint(1, 4)]
        )
        assert expand_hostlist(text) == nodes.run("scontrol", "show", "hostnames", text).split()
