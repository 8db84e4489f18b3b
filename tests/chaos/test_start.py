"""A cluster that cannot start says why, on every task, by its deadline."""

from __future__ import annotations

import copy
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.harness import Programs, size
from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.launcher.ports import free_ports

pytestmark = pytest.mark.chaos

DEADLINE = 4.0
KINDS = ("absent", "foreign", "duplicate", "taken")

# It meets the others and says how that ended and after how long: what Python itself takes to
# start on a busy machine is not part of it.
MEET = """
import json, sys, time
from tfdist.cluster import Cluster
from tfdist.rendezvous.once import meet
from tfdist.errors import TfdistError
cluster = Cluster.from_environment()
print("HERE", flush=True)
sys.stdin.readline()
began = time.monotonic()
try:
    meet(cluster, DEADLINE)
    code, text = 0, ""
except TfdistError as error:
    code, text = error.exit_code, str(error)
print("MET", json.dumps([code, text, time.monotonic() - began]), flush=True)
"""


class Task:
    """One task of a cluster that is about to meet."""

    def __init__(self, workers: list[str], index: int) -> None:
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        self._process = subprocess.Popen(
            [sys.executable, "-c", MEET.replace("DEADLINE", str(DEADLINE))],
            env={"TF_CONFIG": json.dumps(config), "PATH": "/usr/bin:/bin"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Task:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "HERE\n"
        return self

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def result(self) -> tuple[int, str, float]:
        """Exit code, message and seconds."""
        out, _ = self._process.communicate(timeout=DEADLINE + 30)
        code, text, seconds = json.loads(out.partition("MET ")[2])
        return code, text, seconds

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.mark.parametrize("trial", range(size(4, 40)))
def test_what_keeps_a_cluster_from_starting_is_named(trial: int) -> None:
    generator = random.Random(f"start {trial}")
    kind = KINDS[trial % len(KINDS)]
    count = generator.randint(2, 4)
    workers = [f"127.0.0.1:{port}" for port in free_ports(count)]
    odd = generator.randrange(count)
    tasks = [Task(workers, index) for index in range(count) if index != odd]
    others = list(tasks)
    holder = None
    if kind == "foreign":
        tasks.append(Task([*workers, "127.0.0.1:1"], odd))
    elif kind == "duplicate":
        tasks += [Task(workers, odd), Task(workers, odd)]
    elif kind == "taken":
        holder = socket.create_server(("127.0.0.1", int(workers[odd].rpartition(":")[2])))
        tasks.append(Task(workers, odd))
    try:
        for task in tasks:
            task.__enter__()
        for task in tasks:
            task.go()
        results = {task: task.result() for task in tasks}
    finally:
        for task in tasks:
            task.__exit__()
        if holder is not None:
            holder.close()
    for task, (code, text, seconds) in results.items():
        assert code == (138 if kind in ("absent", "taken") else 2), text
        assert seconds < DEADLINE + 1, f"{seconds:.1f} s: {text}"
        assert "\n" not in text
        if task in others or kind != "foreign":  # The foreign one finds all others foreign.
            assert f"worker/{odd}" in text, text
        if task in others:
            problem = {
                "absent": f"worker/{odd} at {workers[odd]} is not there",
                "foreign": f"worker/{odd} at {workers[odd]} belongs to another cluster",
                "duplicate": f"two processes are worker/{odd}",
                "taken": f"worker/{odd}",
            }[kind]
            assert problem in text, text
    print(f"{kind} of {count}: {max(seconds for _, _, seconds in results.values()):.1f} s")


GOOD: dict[str, Any] = {
    "cluster": {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"]},
    "task": {"type": "worker", "index": 1},
}
# Place in it -> what may not stand there.
NOTHING = object()  # the place itself is missing
BAD: dict[tuple[Any, ...], list[Any]] = {
    ("cluster",): [NOTHING, 1, "w:1", [], True, ["w:1"], {"boss": ["w:1"]}, {"": ["w:1"]}],
    ("cluster", "worker"): [None, 1, "w:1", {"a": "w:1"}, True, 1.5, NOTHING],
    ("cluster", "ps"): [7, "p:1", True, {"0": "a"}],
    ("cluster", "chief"): ["c:1", 0.5, ["c:1", "c:2"], True],
    ("cluster", "worker", 0): [None, 1, "", "w", ":1", "w:", "w:x", "w:0", "w:-1", "w:65536"]
    + ["w:1 ", " w:1", "w:1:2", "[::1", "[::1]", "w:1\n", "w:\u0661", ["w:1"], {}, True, 1.5]
    + ["w:99999", "w:1e3", "w:0x10", "http://w:1", "w:1/", "w w:1", "w:2", "c:1", "p:1"],
    ("cluster", "chief", 0): ["", None, "c", 3, "w:1", "c:-5", []],
    ("cluster", "ps", 0): ["", None, "p", 3, "w:1", "c:1", "p:70000"],
    ("task",): [NOTHING, None, 1, "worker", [], True, {}, {"type": "worker"}, {"index": 0}],
    ("task", "type"): [NOTHING, None, 1, "", "boss", "Worker ", [], {}, True],
    ("task", "index"): [NOTHING, None, -1, 2, 99, 1.5, "", "x", "-1", [], {}, True, "1.0"],
}


def malformed() -> Iterator[tuple[str, str]]:
    """How the message must begin, and the text."""
    for path, values in BAD.items():
        for value in values:
            config = copy.deepcopy(GOOD)
            target = config
            for key in path[:-1]:
                target = target[key]
            field = f"TF_CONFIG.{path[0]}"
            if value is NOTHING:
                del target[path[-1]]
            else:
                target[path[-1]] = value
                # Of two that are alike, the second one is named, and the first one beside it.
                is_double = value in ("c:1", "w:1", "p:1") and len(path) == 3
                field += f".{path[1]}" if len(path) > 1 and not is_double else ""
            yield field, json.dumps(config)
    text = json.dumps(GOOD)
    generator = random.Random("malformed")
    for _ in range(20):  # A text that is cut is no JSON.
        yield "TF_CONFIG: ", text[: generator.randrange(1, len(text))]
    for changed in ("[]", "1", "null", '"x"', "{", "}", "[" * 5000, "{'cluster': 1}", "\x00"):
        yield "TF_CONFIG: ", changed


def test_malformed_configurations_are_rejected_and_the_field_is_named() -> None:
    cases = list(malformed())
    assert len(cases) >= 100
    slowest = 0.0
    for field, text in cases:
        began = time.monotonic()
        with pytest.raises(ConfigError) as caught:
            Cluster.from_tf_config(text)
            pytest.fail(f"accepted: {text[:200]}")
        slowest = max(slowest, time.monotonic() - began)
        message = str(caught.value)
        # A field that is missing is named behind the object that lacks it.
        assert message.replace("TF_CONFIG: ", "TF_CONFIG.", 1).startswith(
            field.replace("TF_CONFIG: ", "TF_CONFIG.")
        ), (text, message)
        assert "\n" not in message and len(message) < 400, message
    print(f"{len(cases)} rejected, the slowest after {slowest * 1000:.1f} ms")
    assert slowest < 1.0


@pytest.mark.parametrize("trial", range(size(2, 10)))
def test_the_command_rejects_a_malformed_configuration_at_once(
    programs: Programs, trial: int
) -> None:
    cases = list(malformed())
    _, text = cases[trial * 7 % len(cases)]
    began = time.monotonic()
    check = programs.start([sys.executable, "-m", "tfdist", "check"], {"TF_CONFIG": text})
    assert check.end() == 2
    assert len(check.lines) == 1 and check.lines[0].startswith("tfdist: TF_CONFIG")
    assert time.monotonic() - began < 10  # Python's own start on a busy machine.
