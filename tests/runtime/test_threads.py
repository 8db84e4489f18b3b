from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.runtime.threads import container_cpus, limit_threads


def files(root: Path, **contents: str) -> str:
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("contents", "cpus"),
    [
        # A container with its own control group name space, and the host's.
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
        ({"proc/self/cgroup": "0::/kubepods/pod7/x\n", "sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        # The smallest around it counts.
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "250000 100000\n",
                "sys/fs/cgroup/cpu.max": "800000 100000\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/x\n1:name=systemd:/\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "garbage"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_a_control_group(tmp_path, contents, cpus):
    assert container_cpus(files(tmp_path, **contents)) == cpus


def test_slurm_comes_first_and_what_is_set_stays(tmp_path):
    root = files(
        tmp_path, **{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}
    )
    environ = {"SLURM_PROCID": "1", "SLURM_CPUS_PER_TASK": "3", "OMP_NUM_THREADS": "1"}
    limit_threads(environ, root)
    assert environ["TF_NUM_INTRAOP_THREADS"] == "3"
    assert environ["TF_NUM_INTEROP_THREADS"] == "2"
    assert environ["OMP_NUM_THREADS"] == "1"
    environ = {}
    limit_threads(environ, root)
    assert environ["TF_NUM_INTRAOP_THREADS"] == environ["OMP_NUM_THREADS"] == "4"


def test_without_a_limit_nothing_is_set(tmp_path):
    environ = {"SLURM_CPUS_PER_TASK": "3"}  # No task: it only asks for one.
    limit_threads(environ, str(tmp_path))
    assert environ == {"SLURM_CPUS_PER_TASK": "3"}


def test_it_is_set_before_tensorflow_is_imported():
    program = (
        "import importlib, os\n"
        "importlib.import_module = lambda name: print(name, os.environ['TF_NUM_INTRAOP_THREADS'])\n"
        "from tfdist.runtime.startup import start_tensorflow\n"
        "try: start_tensorflow()\n"
        "except AttributeError: pass\n"
    )
    env = {**os.environ, "SLURM_PROCID": "0", "SLURM_CPUS_PER_TASK": "3"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "tensorflow 3\n"
