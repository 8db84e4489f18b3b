"""Whatever a command line or its environment holds, the answer is a line and comes soon."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time

import pytest

DIGITS = "9" * 400
TWO = json.dumps(
    {
        "cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]},
        "task": {"type": "worker", "index": 0},
    }
)
SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_NODELIST": "n[0-1]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "0",
}


def tfjob(command, env=()):
    container = {"name": "tensorflow", "command": command, "env": list(env)}
    worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "a"},
        "spec": {"tfReplicaSpecs": {"Worker": worker}},
    }


SPECS = {
    "surrogate": tfjob(["\ud800"]),
    "surrogate_env": tfjob(["true"], [{"name": "A", "value": "\ud800"}]),
    "nul": tfjob(["tr\0ue"]),
    "nul_env": tfjob(["true"], [{"name": "A", "value": "b\0"}]),
    "many": {"cluster": {"worker": [f"10.0.{i >> 8}.{i & 255}:1" for i in range(60_000)]}},
}
COST = "plan --multiply-adds 1e9 --parameters 1e6"
PLAN = "plan --per-replica-batch 8 --num-replicas 2 --base-learning-rate 0.1"

# Arguments, variables, and what the shell does first; the exit codes that are right.
CASES = [
    *((f"launch --spec {name}", {}, "") for name in SPECS),
    ("launch --spec /dev/zero", {}, ""),
    ("launch --workers 50 -- true", {}, "ulimit -n 64"),
    ("launch --workers 1 --grace 1e308 -- true", {}, ""),
    (f"launch --workers {DIGITS} -- true", {}, ""),
    ("train", {"TFDIST_WAIT": "1e10", "TF_CONFIG": TWO}, ""),
    ("check --wait 1e308", {"TF_CONFIG": TWO}, ""),
    ("check", {"TF_CONFIG": "[" * 2000}, ""),
    ("check", {"TF_CONFIG": TWO.replace("0}", DIGITS + "}")}, ""),
    ("check", {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "999999"}, ""),
    ("check", {**SLURM, "SLURM_STEP_NODELIST": "n[0-999999999]"}, ""),
    ("check", {**SLURM, "SLURM_STEP_NODELIST": "n[" * 1000}, ""),
    (f"plan --per-replica-batch {DIGITS} --num-replicas 2 --base-learning-rate 1e308", {}, ""),
    ("plan --per-replica-batch 8 --num-replicas 9 --base-learning-rate 1e308", {}, ""),
    (f"{PLAN} --num-examples 1000000 --epochs 1e308", {}, ""),
    (f"{COST} --epochs 1e308 --num-examples {DIGITS}", {}, ""),
    (f"{COST} --network /dev/zero", {}, ""),
    (f"{COST} --link nvlink --tflops 1 --workers {DIGITS}", {}, ""),
    (f"bench collectives --workers 2 --sizes {DIGITS}", {}, ""),
    (f"train --epochs {DIGITS}", {}, ""),
    (f"train --base-learning-rate {DIGITS}", {}, ""),
    ("train --wait 1e308", {}, ""),
    (f"render slurm --name a --workers {DIGITS} -- true", {}, ""),
]
FINE = [
    (f"{PLAN} --epochs 90 --num-examples 1000000 --warmup-epochs 1e9", {}, ""),
    *((command, {}, "exec >&-") for command in ("check", "--help", "--version", f"{PLAN}")),
    ("check", {**SLURM}, ""),
    (f"{COST} --num-examples 999999999999 --epochs 1e20 --price 1e20 --tflops 1e-20", {}, ""),
    (f"{PLAN} --epochs 90 --num-examples 1000000", {}, ""),
]


def run(tmp_path, arguments, env, first):
    for name, spec in SPECS.items():
        if f"--spec {name}" in arguments and arguments.endswith(name):
            path = tmp_path / f"{name}.json"
            path.write_text(json.dumps(spec))
            arguments = arguments.replace(f"--spec {name}", f"--spec {path} -- true")
            if name == "nul" or name == "surrogate":
                arguments = arguments.removesuffix(" -- true")  # Its own command.
    command = f"exec {shlex.quote(sys.executable)} -m tfdist {arguments}"
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM", "TFDIST", "TF_CONFIG"))
    }
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", f"{first or ':'}; {command}"],
        env=kept | env,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        timeout=60,
    )
    assert time.monotonic() - began < 30
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize(("arguments", "env", "first"), CASES, ids=range(len(CASES)))
def test_the_answer_is_one_line_and_exit_code_2(tmp_path, arguments, env, first):
    done = run(tmp_path, arguments, env, first)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize(("arguments", "env", "first"), FINE, ids=range(len(FINE)))
def test_what_is_fine_is_done(tmp_path, arguments, env, first):
    assert run(tmp_path, arguments, env, first).returncode == 0


@pytest.mark.parametrize("arguments", ["--help", "--version", PLAN])
def test_a_full_disk_under_the_output_is_said(tmp_path, arguments):
    done = run(tmp_path, arguments, {}, "exec >/dev/full")
    assert done.returncode == 1
    assert done.stderr == "tfdist: the output cannot be written: No space left on device\n"
