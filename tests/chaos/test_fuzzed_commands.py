"""Drawn command lines, variables and files: the answer is always a line, and comes soon."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import FULL, size
from tfdist.render.slurm import NO_RETRY

pytestmark = [pytest.mark.chaos]

CASES = size(12, 500)
SEED = os.environ.get("TFDIST_CHAOS_SEED", "commands")
SECONDS = 2.0 if FULL else 30.0  # beside the suite's other processes
NASTY = (
    "", "0", "-1", "-0", "1.5", "1e308", "-1e308", "nan", "inf", "0x10", "٣", "9" * 400, " ", "\n",
    "é", "\udcff", "a" * 10_000, "[" * 500, "]", "[0-", "[0-999999999]", "{}", "null", "true", "--",
    "---", "-", "=", ":", ",", "*", "%s", "{0}", "$HOME", "`true`", "../..", "/dev/null",
    "/dev/zero", "/proc/self/mem", "/proc/nope", "/", "worker", "chief:0", "127.0.0.1:0",
    "127.0.0.1:99999", "[::1]:1", "::1", "a:b:c", "--help", "--workers",
    "!!python/object:os.system",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, 10**400, "", "a", "é\x00", "\ud800", [], {}, [[]], [None],
    {"": ""}, {"a": {"a": {}}}, ["127.0.0.1:1"], "127.0.0.1:1", 65536, "9" * 400,
)  # fmt: skip
CONFIG = {
    "cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"], "ps": ["127.0.0.1:3"]},
    "task": {"type": "worker", "index": 0},
    "environment": "cloud",
}
CONTAINER = {
    "name": "tensorflow",
    "image": "a",
    "command": ["true"],
    "args": ["a"],
    "env": [{"name": "A", "value": "b"}],
    "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": 0}},
}
REPLICA = {
    "replicas": 1,
    "restartPolicy": "Never",
    "template": {"spec": {"containers": [CONTAINER], "volumes": []}},
}
TFJOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "TFJob",
    "metadata": {"name": "a", "namespace": "b"},
    "spec": {
        "tfReplicaSpecs": {"Worker": REPLICA, "PS": REPLICA, "Chief": REPLICA},
        "runPolicy": {"backoffLimit": 1, "cleanPodPolicy": "None"},
    },
}
SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_NODELIST": "n[0-1]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_CPUS_PER_TASK": "1",
}
KUBERNETES = {
    "JOB_COMPLETION_INDEX": "0",
    "TFDIST_WORKERS": "a-worker-0-[0-1].a:2222",
    "TFDIST_TASK_TYPE": "worker",
    "TFDIST_WAIT": "300",
}
COMMANDS = (
    "check", "check --wait 0", "check --alive",
    "plan --per-replica-batch 8 --num-replicas 2 --base-learning-rate 0.1 --epochs 9 "
    "--num-examples 1000 --warmup-epochs 2 --rule linear",
    "render tfjob --workers 2 --ps 1 --name a --image b --cpus 4 --memory 8Gi -- true",
    "render jobset --workers 2 --name a --image b --volume c:/d --gpus-per-worker 1 -- true",
    "render slurm --workers 2 --name a --cpus 4 --memory 8G -- true",
    "render slurm --workers 4 --ps 1 --name a --time 60 --gpus-per-node 2 --workers-per-node 2 "
    "--sbatch=--exclusive --setup true --stage /a:/b --container pyxis --image a -- true",
    "launch --workers 1 --grace 1 --restart-delay 0 --log-dir logs -- true",
    "launch --workers 1 --max-restarts 0 --stall-timeout 9 --env A=B -- true",
    "launch --spec FILE", "launch --spec FILE -- true",
    "train --epochs 0 --strategy auto --dataset digits", "train --steps 0 --wire-dtype float16",
    "bench scaling --steps x", "bench batch --limit x", "task", "--version",
)  # fmt: skip

Change = Callable[[random.Random], Any]


def bend(draw: random.Random, value: Any, times: int) -> Any:
    """A copy of nested data with parts replaced, removed or added."""
    made = json.loads(json.dumps(value))
    for _ in range(times):
        places: list[tuple[Any, Any]] = []

        def walk(node: Any, places: list[tuple[Any, Any]] = places) -> None:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            for key in keys:
                places.append((node, key))
                if isinstance(node[key], dict | list):
                    walk(node[key])

        if isinstance(made, dict | list):
            walk(made)
        if not places:
            return draw.choice(VALUES)
        node, key = draw.choice(places)
        how = draw.randrange(4)
        if how == 0:
            del node[key]
        elif how == 1 and isinstance(node, dict):
            node[draw.choice(NASTY)] = node.pop(key)
        else:
            node[key] = draw.choice(VALUES)
    return made


def scratch(draw: random.Random, data: bytes) -> bytes:
    """Bytes with some of them cut, changed, doubled or added."""
    at = draw.randrange(len(data) + 1)
    return draw.choice(
        (
            data[:at],
            data[:at] + draw.randbytes(3) + data[at:],
            data[:at] + data[:at],
            data[:at] + draw.choice(NASTY).encode(errors="surrogateescape") + data[at:],
            data[:at] + b"\0" + data[at + 1 :],
        )
    )


def words_of(draw: random.Random, command: str) -> list[str]:
    words = command.split()
    for _ in range(draw.choice((0, 1, 1, 1, 2))):
        at = draw.randrange(len(words) + 1)
        how = draw.randrange(4)
        if how == 0 and len(words) > 1:
            words.insert(at, words[at % len(words)])
        elif how == 1 and len(words) > 1:
            del words[at % len(words)]
        elif how == 2:
            words.insert(at, draw.choice(NASTY))
        else:
            words[at % len(words)] = draw.choice(NASTY)
    return [word.replace("\0", "") for word in words]


def environment(draw: random.Random) -> dict[str, str]:
    which = draw.randrange(5)
    if which == 0:
        text = json.dumps(bend(draw, CONFIG, draw.randrange(1, 4)))
        if draw.random() < 0.3:
            text = scratch(draw, text.encode()).decode(errors="surrogateescape")
        return {"TF_CONFIG": text.replace("\0", "")}
    if which in (1, 2):
        env = dict(SLURM if which == 1 else KUBERNETES)
        for name in draw.sample(sorted(env), draw.randrange(1, 3)):
            env[name] = draw.choice((*NASTY, f"{env[name]}{draw.choice(NASTY)}")).replace("\0", "")
        return env
    if which == 3:
        names = ("TFDIST_WAIT", "TFDIST_STALL", "TFDIST_HEARTBEAT", "TFDIST_TRANSPORT", "TMPDIR")
        return {draw.choice(names): draw.choice(NASTY)}
    return {}


def file(draw: random.Random) -> bytes:
    job: Any = TFJOB if draw.random() < 0.7 else {"cluster": CONFIG["cluster"]}
    data = json.dumps(bend(draw, job, draw.randrange(3))).encode(errors="surrogatepass")
    return scratch(draw, data) if draw.random() < 0.4 else data


def case(number: int, folder: Path) -> tuple[list[str], dict[str, str]]:
    draw = random.Random(f"{SEED} {number}")
    words = words_of(draw, draw.choice(COMMANDS))
    path = folder / f"{number}.yaml"
    path.write_bytes(file(draw))
    return [str(path) if word == "FILE" else word for word in words], environment(draw)


def test_no_command_line_gives_a_traceback_or_hangs(tmp_path: Path) -> None:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM", "TFDIST", "TF_CONFIG", "JOB_"))
    }
    codes: dict[int, int] = {}
    slowest, faults = 0.0, []
    for number in range(CASES):
        words, env = case(number, tmp_path)
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "tfdist", *words],
            env={**kept, "PYTHONPATH": os.getcwd(), **env},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
        )
        took = time.monotonic() - began
        code = done.returncode
        if words[:1] == ["task"] and code > NO_RETRY:  # For srun, which would hide its own.
            code -= NO_RETRY
        codes[code] = codes.get(code, 0) + 1
        is_refused = code == 2
        slowest = max(slowest, took if is_refused else 0.0)
        if (
            "Traceback" in done.stderr
            or (is_refused and (took > SECONDS or len(done.stderr.splitlines()) != 1))
            or code not in (0, 1, 2, 138)
        ):
            said = done.stderr[-1500:]
            faults.append(f"{number}: {words} {env}: {done.returncode}, {took:.1f} s\n{said}")
    print(
        f"{CASES} cases: exit codes {dict(sorted(codes.items()))}; slowest refusal {slowest:.1f} s"
    )
    assert not faults, "\n\n".join(faults)
    assert codes.get(2, 0) > CASES / 3, "hardly any was refused"
