"""The launcher's parts that need no processes."""

from __future__ import annotations

import io
import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tfdist.errors import ConfigError
from tfdist.launcher.exits import Exit, Restarts, root_cause
from tfdist.launcher.job import Job
from tfdist.launcher.machine import divide, gpu_ids
from tfdist.launcher.outlet import LogFile, Outlet
from tfdist.launcher.output import LineAssembler, TaskOutput
from tfdist.launcher.ports import free_ports


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(*chunks: bytes) -> list[str]:
    assembler = LineAssembler(Clock())
    result = [line for chunk in chunks for line in assembler.feed(chunk)]
    return result + assembler.feed(b"", final=True)


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ((b"a\nb\n",), ["a", "b"]),
        ((b"a", b"b\n", b"c"), ["ab", "c"]),
        ((b"\n\n",), ["", ""]),
        ((b"",), []),
        ((b"a\r\nb\r\n",), ["a", "b"]),
        ((b"a\r", b"\nb"), ["a", "b"]),
        ((b"\r1/3\r2/3", b"\r3/3\n"), ["3/3"]),
        ((b"1/2\r2/2\r",), ["2/2"]),
        ((b"\b\b\b1/2\r\b\b\b2/2\n",), ["2/2"]),
        ((b"\xff\n",), ["\ufffd"]),
        (("é".encode()[:1], "é".encode()[1:]), ["é"]),
    ],
)
def test_lines(chunks: tuple[bytes, ...], expected: list[str]) -> None:
    assert lines(*chunks) == expected


def test_a_bar_that_is_being_redrawn_shows_now_and_then() -> None:
    clock = Clock()
    assembler = LineAssembler(clock)
    shown = []
    for step in range(100):
        clock.now += 0.1
        shown += assembler.feed(f"{step}/99\r".encode())
    assert 3 <= len(shown) <= 6
    assert assembler.feed(b"\n") == ["99/99"]


def test_an_endless_line_does_not_fill_the_memory() -> None:
    assembler = LineAssembler(Clock())
    assert sum(len(assembler.feed(b"x" * 10_000)) for _ in range(100)) >= 10


def test_output_is_prefixed_logged_and_its_end_is_kept() -> None:
    stream, log = io.StringIO(), io.BytesIO()
    output = TaskOutput("ps/0", 8, Outlet(stream, "stdout"), LogFile(log, print), keep=2)
    output.feed(b"a\n\nb\rc\nd")
    output.feed(b"", final=True)
    assert stream.getvalue() == "ps/0     | a\nps/0     |\nps/0     | c\nps/0     | d\n"
    assert log.getvalue() == b"a\n\nb\rc\nd"
    assert list(output.tail) == ["c", "d"]


def test_exits() -> None:
    killed = Exit("worker/1", -signal.SIGKILL)
    assert (str(killed), killed.exit_code, killed.retryable) == ("killed by SIGKILL", 138, True)
    ended = Exit("worker/1", -signal.SIGTERM)
    assert (ended.exit_code, ended.retryable) == (138, True)
    assert (Exit("a/0", 2).exit_code, Exit("a/0", 2).retryable) == (2, False)
    assert str(Exit("a/0", 1)) == "exit code 1"
    assert Exit.from_status("a/0", 3 << 8, 0.0).code == 3
    assert not Exit("a/0", 0).failed


def test_the_cause_is_the_first_failure_that_blames_no_other() -> None:
    done, complaint = Exit("worker/0", 0, 1.0), Exit("worker/1", 138, 2.0)
    killed, later = Exit("worker/2", -9, 3.0), Exit("worker/3", 1, 4.0)
    assert root_cause([later, killed, complaint, done]) == killed
    assert root_cause([complaint, done]) == complaint
    assert root_cause([done]) is None
    stalled = Exit("worker/1", 138, 2.0, note="made no step for 60 s")
    assert root_cause([killed, stalled]) == stalled


def test_restarts_are_spaced_out_as_long_as_nothing_comes_of_them() -> None:
    restarts = Restarts(most=9, first_delay=1.0)
    assert [restarts.next_delay(2.0, worked=False) for _ in range(6)] == [1, 2, 4, 8, 16, 30]
    assert restarts.next_delay(2.0, worked=True) == 1
    assert restarts.next_delay(2.0, worked=False) == 2
    assert restarts.next_delay(40.0, worked=False) == 1
    assert str(restarts) == "restart 9 of 9" and not restarts.allow(Exit("worker/0", 138))


def test_ports_are_free_and_differ() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


PSS = ["chief/0", "worker/0", "worker/1", "ps/0"]


def test_computing_tasks_share_the_cores() -> None:
    shares = divide(PSS, PSS[1:3], cores=[0, 1], gpus=[])
    assert [shares[name].cores for name in PSS] == [(), (0,), (1,), ()]
    assert shares["worker/0"].env["TF_NUM_INTRAOP_THREADS"] == "1"
    assert shares["ps/0"].env["OMP_NUM_THREADS"] == "1"
    assert all("CUDA_VISIBLE_DEVICES" not in share.env for share in shares.values())


def test_gpus_are_split_among_computing_tasks() -> None:
    shares = divide(PSS, PSS[1:3], cores=[0, 1], gpus=["4", "5", "6", "7"])
    visible = [shares[name].env["CUDA_VISIBLE_DEVICES"] for name in PSS]
    assert visible == ["", "4,5", "6,7", ""]


def test_with_fewer_cores_than_tasks_nothing_is_pinned() -> None:
    assert divide(PSS, PSS[1:3], cores=[0], gpus=[])["worker/0"].cores == ()


def test_numbers_of_cores() -> None:
    shares = divide(PSS, PSS[1:3], cpus_per_task="2", cores=list(range(8)), gpus=[])
    assert [shares[name].cores for name in PSS[1:3]] == [(0, 1), (2, 3)]
    assert divide(PSS, PSS[1:3], cpus_per_task="none", cores=[0, 1], gpus=[])["ps/0"].env == {}
    with pytest.raises(ConfigError, match="^--cpus-per-task: 2 for each of 2 tasks is more"):
        divide(PSS, PSS[1:3], cpus_per_task="2", cores=[0, 1], gpus=[])
    with pytest.raises(ConfigError, match="^--gpus-per-task: 'x' is not auto, none or a number"):
        divide(PSS, PSS[1:3], gpus_per_task="x", cores=[0, 1], gpus=[])


def test_visible_gpus_are_honoured() -> None:
    assert gpu_ids({"CUDA_VISIBLE_DEVICES": "2,3"}) == ["2", "3"]
    assert gpu_ids({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert gpu_ids({"CUDA_VISIBLE_DEVICES": "0,-1,1"}) == ["0"]


def write(path: Path, content: Any) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_a_spec_keeps_loopback_addresses_and_replaces_others(tmp_path: Path) -> None:
    spec = {"cluster": {"worker": ["127.0.0.1:5", "far:5"], "ps": ["localhost:6"]}}
    job = Job.from_file(write(tmp_path / "spec.json", spec), ["true"])
    placed = job.place()
    assert placed["worker"][0] == "127.0.0.1:5" and placed["ps"] == ["localhost:6"]
    assert placed["worker"][1].startswith("127.0.0.1:") and placed["worker"][1] != "127.0.0.1:5"
    assert job.notes[0].endswith("'far:5' is replaced by a free local port")


TFJOB = """
apiVersion: v1
kind: ConfigMap
---
apiVersion: kubeflow.org/v1
kind: TFJob
spec:
  tfReplicaSpecs:
    Chief:
      replicas: 1
      template: {spec: {containers: [{name: tensorflow, command: [tfdist], args: [train]}]}}
    PS:
      template: {spec: {containers: [{name: tensorflow, command: [tfdist, "$(A)", "$(B)"],
        env: [{name: A, value: x}, {name: C, valueFrom: {fieldRef: {}}}]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: side}, {name: tensorflow, args: [w]}]}}
"""


def test_a_tfjob_gives_counts_commands_and_variables(tmp_path: Path) -> None:
    job = Job.from_file(write(tmp_path / "job.yaml", TFJOB), [])
    assert {role: len(members) for role, members in job.addresses.items()} == {
        "chief": 1,
        "worker": 2,
        "ps": 1,
    }
    assert job.commands == {
        "chief": ["tfdist", "train"],
        "ps": ["tfdist", "x", "$(B)"],
        "worker": ["w"],
    }
    assert job.env["ps"] == {"A": "x"}
    for text in ("env C comes from the cluster", "'side' are not run here", "(ConfigMap) left out"):
        assert sum(text in note for note in job.notes) == 1
    other = Job.from_file(write(tmp_path / "job.yaml", TFJOB), ["mine"])
    assert set(map(tuple, other.commands.values())) == {("mine",)}


def tfjob(worker: str = "", policy: str = "", pod: str = "", name: str = "tensorflow") -> str:
    containers = f"containers: [{{name: {name}, args: [w]{pod}}}]"
    replica = f"{{{worker}template: {{spec: {{{containers}}}}}}}"
    return f"{{kind: TFJob, spec: {{{policy}tfReplicaSpecs: {{Worker: {replica}}}}}}}"


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (tfjob("restartPolicy: OnFailure, "), "Worker.restartPolicy is not followed here: --max"),
        (tfjob(policy="successPolicy: AllWorkers, "), "spec.successPolicy is not followed"),
        (tfjob(policy="runPolicy: {backoffLimit: 3}, "), "spec.runPolicy.backoffLimit is not"),
        (tfjob(policy="runPolicy: {cleanPodPolicy: All}, "), "runPolicy.cleanPodPolicy is not"),
        (
            tfjob(policy="runPolicy: {activeDeadlineSeconds: 3}, "),
            "runPolicy.activeDeadlineSeconds is not followed here: there is no deadline",
        ),
        (tfjob(pod=", workingDir: /x"), "workingDir is not followed here: tasks run in this"),
        (tfjob(pod=", envFrom: [{}]"), "envFrom is not followed here: it is in the cluster"),
    ],
)
def test_what_is_different_here_is_said(tmp_path: Path, content: str, note: str) -> None:
    notes = Job.from_file(write(tmp_path / "job.yaml", content), []).notes
    assert len(notes) == 1 and note in notes[0] and "\n" not in notes[0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (tfjob(name="main"), "containers: none is named tensorflow, but 'main'"),
        (tfjob(policy="runPolicy: {suspend: true}, "), "spec.runPolicy.suspend: is true"),
        (tfjob(policy="enableDynamicWorker: true, "), "spec.enableDynamicWorker: tasks would not"),
        ("{kind: JobSet, spec: {replicatedJobs: x}}", "replicatedJobs: 'x' is not a list"),
    ],
)
def test_what_the_operator_refuses_or_holds(tmp_path: Path, content: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Job.from_file(write(tmp_path / "job.yaml", content), [])
    assert problem in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_legal_is_read(tmp_path: Path) -> None:
    content = tfjob("replicas: null, ", pod=", env: [{name: EMPTY}]")
    job = Job.from_file(write(tmp_path / "job.yaml", content), [])
    assert job.addresses == {"worker": (None,)} and job.env["worker"] == {"EMPTY": ""}
    wrapped = f"{{kind: List, items: [{tfjob()}]}}"
    assert Job.from_file(write(tmp_path / "list.yaml", wrapped), []).commands == {"worker": ["w"]}


def replicated(name: str, pods: int = 1, command: str = "x", more: str = "", job: str = "") -> str:
    containers = f"containers: [{{name: main, command: [{command}]}}]"
    inner = f"parallelism: {pods}, {job}template: {{spec: {{{containers}}}}}"
    return f"{{name: {name}, {more}template: {{spec: {{{inner}}}}}}}"


def jobset(*jobs: str, more: str = "") -> str:
    return f"{{kind: JobSet, spec: {{{more}replicatedJobs: [{', '.join(jobs)}]}}}}"


def counts(job: Job) -> dict[str, int]:
    return {role: len(members) for role, members in job.addresses.items()}


@pytest.mark.parametrize(
    ("jobs", "roles", "expected", "notes"),
    [
        # As JobSet's own example for TensorFlow.
        ([replicated("tensorflow", 2)], {}, {"worker": 2}, ["'tensorflow' runs as worker; --role"]),
        (
            [replicated("Leader"), replicated("workers", 3), replicated("parameter-servers", 2)],
            {},
            {"chief": 1, "worker": 3, "ps": 2},
            ["'Leader' runs as chief", "'workers' runs as", "'parameter-servers' runs as ps"],
        ),
        (
            [
                replicated("prepare"),
                replicated("a", 2, more="dependsOn: [{name: prepare, status: Complete}], "),
                replicated("b", more="dependsOn: [{name: a, status: Ready}], "),
            ],
            {"a": "worker", "b": "evaluator"},
            {"worker": 2, "evaluator": 1},
            ["'prepare' prepares the others; not run", "[1].dependsOn is not followed here: all "],
        ),
        (
            [replicated("first", 2), replicated("second", 3)],
            {"first": "none", "second": "worker"},
            {"worker": 3},
            [],
        ),
    ],
)
def test_the_roles_of_a_jobset(
    tmp_path: Path,
    jobs: list[str],
    roles: dict[str, str],
    expected: dict[str, int],
    notes: list[str],
) -> None:
    job = Job.from_file(write(tmp_path / "job.yaml", jobset(*jobs)), [], roles)
    assert counts(job) == expected
    assert len(job.notes) == len(notes)
    for note, text in zip(job.notes, notes, strict=True):
        assert text in note


@pytest.mark.parametrize(
    ("content", "roles", "problem"),
    [
        (
            jobset(replicated("a"), replicated("b")),
            {},
            "[0].name: 'a' is not a role; give --role a=ROLE, which is one of chief, worker, ps, "
            "evaluator, or none to leave it out",
        ),
        (jobset(replicated("leader", 2), replicated("worker")), {}, "'leader' is not a role; give"),
        (jobset(replicated("none"), replicated("worker")), {}, "'none' is not a role; give --role"),
        (jobset(replicated("worker")), {"w": "worker"}, "(--role): 'w' is not one of 'worker'"),
        (jobset(replicated("[a]")), {}, "[0].name: ['a'] is a list; give a string"),
        (
            jobset(replicated("a"), replicated("b", command="y")),
            {"a": "worker", "b": "worker"},
            "[1]: has another command than the other worker; add '-- COMMAND'",
        ),
        (tfjob(), {"Worker": "worker"}, "launch(--role): is given; a TFJob's replicas have"),
    ],
)
def test_roles_that_are_not_clear(
    tmp_path: Path, content: str, roles: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Job.from_file(write(tmp_path / "job.yaml", content), [], roles)
    assert problem in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (jobset(replicated("worker"), more="startupPolicy: {a: b}, "), "spec.startupPolicy is not"),
        (
            jobset(replicated("worker"), more="coordinator: {a: b}, "),
            "find each other by TF_CONFIG",
        ),
        (
            jobset(replicated("worker", job="backoffLimit: 3, ")),
            "template.spec.backoffLimit is not",
        ),
        (
            jobset(replicated("worker")).replace(
                "containers:", "restartPolicy: Never, containers:"
            ),
            "restartPolicy is not followed here: --max-restarts",
        ),
    ],
)
def test_what_a_jobset_has_that_is_different_here_is_said(
    tmp_path: Path, content: str, note: str
) -> None:
    notes = Job.from_file(write(tmp_path / "job.yaml", content), []).notes
    assert len(notes) == 1 and note in notes[0] and "\n" not in notes[0]


TRAINJOB = """
kind: TrainJob
spec:
  runtimeRef: {name: mine}
  runtimePatches: [{}]
  trainer: {numNodes: 3, numProcPerNode: 2, command: [python], args: [a.py],
    env: [{name: A, value: x}]}
"""
RUNTIME = """
kind: TrainingRuntime
metadata: {name: mine}
spec:
  mlPolicy: {numNodes: 5}
  template:
    spec:
      replicatedJobs:
      - name: dataset-initializer
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: dataset-initializer}}
          spec: {template: {spec: {containers: [{name: i}]}}}
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            template:
              spec: {containers: [{name: side}, {name: node, command: [its], env: [{name: B}]}]}
---
"""


@pytest.mark.parametrize("runtime", ["", RUNTIME])
def test_a_trainjob_is_read(tmp_path: Path, runtime: str) -> None:
    job = Job.from_file(write(tmp_path / "job.yaml", runtime + TRAINJOB), [])
    assert counts(job) == {"worker": 3} and job.commands == {"worker": ["python", "a.py"]}
    assert job.env["worker"] == {"A": "x"} | ({"B": ""} if runtime else {})
    expected = ["runtimePatches is not followed", "numProcPerNode is not followed"]
    expected += (
        ["'dataset-initializer' prepares the others; not run here", "'side' are not run here"]
        if runtime
        else ["the runtime 'mine' is in the cluster; not followed here"]
    )
    assert len(job.notes) == len(expected)
    for note, text in zip(job.notes, expected, strict=True):
        assert text in note


def test_what_a_trainjob_leaves_to_its_runtime(tmp_path: Path) -> None:
    bare = "kind: TrainJob\nspec: {runtimeRef: {name: mine}}\n"
    job = Job.from_file(write(tmp_path / "job.yaml", RUNTIME + bare), [])
    assert counts(job) == {"worker": 5} and job.commands == {"worker": ["its"]}
    with pytest.raises(ConfigError, match="the container has no command; add '-- COMMAND'"):
        Job.from_file(write(tmp_path / "job.yaml", bare), [])
    with pytest.raises(ConfigError, match="suspend: is true: such a job is held"):
        Job.from_file(write(tmp_path / "job.yaml", bare.replace("{r", "{suspend: true, r")), [])


@pytest.mark.parametrize("ps", [0, 1])
def test_a_rendered_trainjob_is_read(tmp_path: Path, ps: int) -> None:
    from tfdist.render.kubernetes import documents
    from tfdist.render.workload import Workload

    made = documents(
        "trainjob", Workload(name="j", image="i", command=["tfdist", "train"], workers=2, ps=ps)
    )
    job = Job.from_file(write(tmp_path / "job.json", {"kind": "List", "items": made}), [])
    assert counts(job) == ({"chief": 1, "worker": 2, "ps": 1} if ps else {"worker": 2})
    assert job.commands["worker"] == ["tfdist", "train"]
    assert not any("runs as" in note for note in job.notes)
    assert job.notes[-1].endswith("2 further documents (NetworkPolicy, Secret) left out")


@pytest.mark.parametrize("ps", [0, 1])
def test_a_rendered_jobset_is_read(tmp_path: Path, ps: int) -> None:
    from tfdist.render.kubernetes import jobset
    from tfdist.render.workload import Workload

    manifest = jobset(Workload(name="j", image="i", command=["tfdist", "train"], workers=2, ps=ps))
    job = Job.from_file(write(tmp_path / "job.json", manifest), [])
    counts = {role: len(members) for role, members in job.addresses.items()}
    assert counts == ({"chief": 1, "worker": 2, "ps": 1} if ps else {"worker": 2})
    assert job.commands["worker"] == ["tfdist", "train"]
    assert job.env["worker"] == {"TFDIST_WAIT": "1800"}
    assert any("failurePolicy is not followed" in note for note in job.notes)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.json", "{", "is not JSON"),
        ("a.json", {"cluster": {"worker": ["a"]}}, r": cluster.worker\[0\]: 'a' has no port"),
        ("a.json", {"x": 1}, "holds neither"),
        ("a.yaml", "a: [", "is not YAML"),
        ("a.yaml", "", "holds neither"),
        ("a.yaml", "kind: TFJob", "spec"),
        ("a.yaml", "{kind: TFJob, spec: {tfReplicaSpecs: {}}}", "has no replicas"),
        ("a.yaml", "{kind: TFJob, spec: {tfReplicaSpecs: {Boss: {}}}}", "'boss' is not a role"),
        ("a.yaml", "{kind: TFJob, spec: {tfReplicaSpecs: {Worker: {replicas: x}}}}", "replicas"),
        ("a.yaml", "{kind: TFJob, spec: {tfReplicaSpecs: {Worker: {}}}}", "template"),
        (
            "a.yaml",
            "{kind: TFJob, spec: {tfReplicaSpecs: {Worker: {template: {spec: {containers: []}}}}}}",
            "containers: is empty",
        ),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: str, content: Any, problem: str) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(ConfigError, match=problem) as caught:
        Job.from_file(path, ["true"])
    assert str(caught.value).startswith(path) and "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Job.from_file(str(tmp_path / "none.json"), ["true"])


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        ({"worker": 0}, "give at least one"),
        ({"worker": 1, "chief": 2}, "2 chiefs"),
        ({"ps": 1}, "no worker"),
        ({"worker": 5000}, "too many"),
    ],
)
def test_counts_that_make_no_cluster(counts: dict[str, int], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Job.from_counts(counts, ["true"])
