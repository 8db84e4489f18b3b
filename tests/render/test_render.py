"""Manifests: what Kubernetes acts on, and that the shipped files are what render prints."""

import contextlib
import io
import shlex
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tfdist.cli import main
from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.render.kubernetes import documents, jobset, tfjob
from tfdist.render.workload import Workload

from .webhooks import refusals

SPECS = Path(__file__).parents[2] / "cluster_specs"
MADE = sorted([*SPECS.glob("*.yaml"), *SPECS.glob("*.sbatch")])


def workload(**changes):
    arguments = {"name": "job", "image": "image:1", "command": ["tfdist", "train"], "workers": 2}
    return Workload(**arguments | changes)


def pods(manifest):
    """(role, replicas, pod spec) of each kind of task."""
    spec = manifest["spec"]
    if manifest["kind"] == "TFJob":
        return [
            (kind.lower(), replica["replicas"], replica["template"]["spec"])
            for kind, replica in spec["tfReplicaSpecs"].items()
        ]
    return [
        (
            job["name"],
            job["template"]["spec"]["completions"],
            job["template"]["spec"]["template"]["spec"],
        )
        for job in spec["replicatedJobs"]
    ]


def both(**changes):
    return [tfjob(workload(**changes)), jobset(workload(**changes))]


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_shipped_file_is_what_its_first_line_prints(path):
    command = next(line for line in path.read_text().splitlines() if line.startswith("# tfdist"))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(shlex.split(command)[2:]) == 0
    assert out.getvalue() == path.read_text()


def test_there_are_files_for_each_place():
    assert len(MADE) == 8
    assert {path.suffix for path in MADE} == {".yaml", ".sbatch"}


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.json")), ids=lambda path: path.name)
def test_plain_spec_is_a_cluster(path):
    import json

    spec = json.loads(path.read_text())
    cluster = Cluster.from_cluster_spec(spec["cluster"], task_type="worker", task_index=0)
    assert len(cluster.tasks) == sum(len(tasks) for tasks in spec["cluster"].values())


@pytest.mark.parametrize("ps", [0, 2])
def test_pods_and_jobs_fit_the_kubernetes_schema(ps):
    for manifest in both(ps=ps, gpus_per_worker=2, volume="runs:/runs", namespace="team"):
        assert manifest["metadata"] == {"name": "job", "namespace": "team"}
        for _, _, pod in pods(manifest):
            kubernetes_validate.validate(
                {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod},
                "1.30",
                strict=True,
            )
    for job in jobset(workload(ps=ps))["spec"]["replicatedJobs"]:
        kubernetes_validate.validate(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
            | {"spec": job["template"]["spec"]},
            "1.30",
            strict=True,
        )


@pytest.mark.parametrize("ps", [0, 2])
@pytest.mark.parametrize("gpus_per_worker", [0, 1, 8])
@pytest.mark.parametrize("volume", [None, "runs:/runs"])
def test_no_webhook_refuses_what_is_rendered(ps, gpus_per_worker, volume):
    for name in ("job", "j" * 40):
        for manifest in both(
            name=name, workers=100, ps=ps, gpus_per_worker=gpus_per_worker, volume=volume
        ):
            assert list(refusals(manifest)) == []


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.name)
def test_no_webhook_refuses_a_shipped_file(path):
    *others, job = yaml.safe_load_all(path.read_text())
    assert list(refusals(job)) == []
    assert [other["kind"] for other in others] == ["NetworkPolicy"]


def test_the_webhooks_refuse_a_rule_with_dashes():
    manifest = jobset(workload())
    manifest["spec"]["failurePolicy"]["rules"][0]["name"] = "failed-for-good"
    assert len(list(refusals(manifest))) == 1


def test_tfjob_roles_and_restart():
    for ps, roles in [(0, {"Worker": 3}), (2, {"Chief": 1, "PS": 2, "Worker": 3})]:
        manifest = tfjob(workload(workers=3, ps=ps))
        assert (manifest["apiVersion"], manifest["kind"]) == ("kubeflow.org/v1", "TFJob")
        replicas = manifest["spec"]["tfReplicaSpecs"]
        assert {kind: spec["replicas"] for kind, spec in replicas.items()} == roles
        assert {spec["restartPolicy"] for spec in replicas.values()} == {"ExitCode"}
        # The chief's end is the end of a job that has one.
        assert manifest["spec"].get("successPolicy") == (None if ps else "AllWorkers")
        for _, _, pod in pods(manifest):
            assert "restartPolicy" not in pod
            assert [container["name"] for container in pod["containers"]] == ["tensorflow"]
            assert pod["containers"][0]["command"] == ["tfdist", "train"]


@pytest.mark.parametrize(("workers", "ps"), [(1, 0), (4, 0), (2, 1), (3, 2)])
def test_each_jobset_pod_finds_its_cluster(workers, ps):
    manifest = jobset(workload(workers=workers, ps=ps))
    network = manifest["spec"]["network"]
    assert network["enableDNSHostnames"] and network["publishNotReadyAddresses"]
    for role, replicas, pod in pods(manifest):
        env = {e["name"]: e["value"] for e in pod["containers"][0]["env"] if "value" in e}
        port = pod["containers"][0]["ports"][0]["containerPort"]
        for index in range(replicas):
            # Kubernetes sets the index of an indexed Job's pod.
            cluster = Cluster.from_environment({**env, "JOB_COMPLETION_INDEX": str(index)})
            assert (cluster.task.type, cluster.task.index) == (role, index)
            assert env["TFDIST_WAIT"] == "1800"
            # JobSet's rule: <jobset>-<replicated job>-<job index>-<pod index>.<subdomain>
            host = f"job-{role}-0-{index}.{network['subdomain']}"
            assert cluster.task.address == f"{host}:{port}"
            assert len(cluster.tasks) == workers + ps + bool(ps)


def test_jobset_acts_on_exit_codes():
    manifest = jobset(workload(ps=1))
    rules = manifest["spec"]["failurePolicy"]["rules"]
    assert [(rule["action"], rule["onJobFailureReasons"]) for rule in rules] == [
        ("FailJobSet", ["PodFailurePolicy"])
    ]
    limits = {}
    for job in manifest["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        rule, evicted, stopped = spec["podFailurePolicy"]["rules"]
        assert rule["action"] == "FailJob"
        # Neither uses up a restart: the pod is replaced.
        assert evicted["action"] == stopped["action"] == "Ignore"
        assert evicted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
        assert stopped["onExitCodes"]["values"] == [143]
        assert {1, 2} <= set(rule["onExitCodes"]["values"])
        assert max(rule["onExitCodes"]["values"]) < 128
        assert spec["completionMode"] == "Indexed"
        assert spec["template"]["spec"]["restartPolicy"] == "Never"
        limits[job["name"]] = spec["backoffLimit"]
    assert limits["chief"] == limits["ps"] == 0 < limits["worker"]
    assert manifest["spec"]["successPolicy"]["targetReplicatedJobs"] == ["chief"]
    (only,) = jobset(workload())["spec"]["replicatedJobs"]
    assert only["template"]["spec"]["backoffLimit"] == 0


def test_gpus_are_for_workers_only():
    for manifest in both(ps=1, gpus_per_worker=4):
        for role, _, pod in pods(manifest):
            limits = pod["containers"][0]["resources"]["limits"]
            assert limits.get("nvidia.com/gpu") == (4 if role == "worker" else None)
            assert ("volumes" in pod) == (role == "worker")


def test_yaml_has_no_anchors(capsys):
    arguments = "render jobset --workers 2 --ps 1 --name j --image i -- tfdist train"
    assert main(arguments.split()) == 0
    text = capsys.readouterr().out
    assert "&id" not in text
    *_, job = yaml.safe_load_all(text)
    assert job == jobset(workload(name="j", image="i", ps=1))


def test_a_command_of_several_lines_stays_a_comment(capsys):
    command = ["python", "-c", "import os\nprint(1)"]
    arguments = ["--workers", "2", "--name", "j", "--image", "i", "--"]
    assert main(["render", "jobset", *arguments, *command]) == 0
    text = capsys.readouterr().out
    assert "\n# print(1)'\n" in text.partition("metadata")[0]
    *_, job = yaml.safe_load_all(text)
    assert job == jobset(workload(name="j", image="i", command=command))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Job"}, "render(--name): 'Job' is not"),
        ({"name": "j" * 41}, "render(--name): "),
        ({"name": "job\n"}, "render(--name): "),
        ({"namespace": "a_b"}, "render(--namespace): 'a_b'"),
        ({"image": "two words"}, "render(--image): "),
        ({"command": []}, "render: no command given; add '-- COMMAND'"),
        ({"workers": 0}, "render(--workers): 0 is below 1"),
        ({"cpus": "many"}, "render(--cpus): 'many'"),
        ({"memory": "8 GB"}, "render(--memory): '8 GB'"),
        ({"volume": "runs"}, "render(--volume): 'runs' is not like CLAIM:/PATH"),
    ],
)
def test_bad_fields(changes, message):
    with pytest.raises(ConfigError) as caught:
        workload(**changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [tfjob, jobset])
def test_strangers_are_kept_from_the_job(make):
    work = workload(namespace="team", ps=1)
    policy, secret, job = documents(make(work), work)
    for manifest in (policy, secret):
        kubernetes_validate.validate(manifest, "1.33", strict=True)
        assert manifest["metadata"]["namespace"] == "team"
    label = policy["spec"]["podSelector"]["matchLabels"]
    assert list(label.values()) == ["job"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": label}}]}]
    assert len(secret["stringData"]["secret"]) == 64
    other = documents(make(work), work)[1]
    assert other["stringData"] != secret["stringData"]
    for _, _, pod in pods(job):
        (container,) = pod["containers"]
        (entry,) = [e for e in container["env"] if e["name"] == "TFDIST_SECRET"]
        reference = entry["valueFrom"]["secretKeyRef"]
        assert reference == {"name": secret["metadata"]["name"], "key": "secret"}


def test_a_secret_that_is_there_is_used():
    work = workload(secret="team-secret")
    assert [manifest["kind"] for manifest in documents(jobset(work), work)] == [
        "NetworkPolicy",
        "JobSet",
    ]
    with pytest.raises(ConfigError, match="is not the name of a Secret"):
        workload(secret="No Secret")
