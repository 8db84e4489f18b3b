"""A TrainJob and its runtime, and what Trainer makes of both."""

import pytest

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.render.kubernetes import documents

from .jobs import pods, rendered, settings, task, workload
from .webhooks import templates


@pytest.mark.parametrize(("workers", "ps"), [(1, 0), (4, 0), (2, 1), (3, 2)])
def test_each_pod_finds_its_cluster(workers, ps):
    made = rendered("trainjob", workers=workers, ps=ps)
    job, runtime = made["TrainJob"]["spec"], made["TrainingRuntime"]["spec"]
    assert job["runtimeRef"]["kind"] == "TrainingRuntime"
    assert job["runtimeRef"]["name"] == made["TrainingRuntime"]["metadata"]["name"]
    assert job["trainer"]["numNodes"] == runtime["mlPolicy"]["numNodes"] == workers
    for name, replicas, template in templates(made["TrainingRuntime"]):
        role = "worker" if name == "node" else name
        container = task(template)
        env = {e["name"]: e["value"] for e in container["env"] if "value" in e}
        port = container["ports"][0]["containerPort"]
        for index in range(replicas):
            environ = {**env, "JOB_COMPLETION_INDEX": str(index)}
            if "torch" in runtime["mlPolicy"]:
                # pkg/runtime/framework/plugins/torch/torch.go of kubeflow/trainer
                environ |= {
                    "PET_NNODES": str(workers),
                    "PET_NPROC_PER_NODE": "4",
                    "PET_NODE_RANK": str(index),
                    "PET_MASTER_ADDR": "job-node-0-0.job",
                    "PET_MASTER_PORT": "29500",
                }
            cluster = Cluster.from_environment(environ)
            assert (cluster.task.type, cluster.task.index) == (role, index)
            assert len(cluster.tasks) == workers + ps + bool(ps)
            if workers > 1 or ps:
                assert cluster.task.address == f"job-{name}-0-{index}.job:{port}"


def test_the_runtime_acts_on_exit_codes_of_its_container():
    for job in rendered("trainjob", ps=1)["TrainingRuntime"]["spec"]["template"]["spec"][
        "replicatedJobs"
    ]:
        spec = job["template"]["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        rules = [rule["onExitCodes"] for rule in spec["podFailurePolicy"]["rules"][::2]]
        assert {rule["containerName"] for rule in rules} == {container["name"]}


def test_what_the_job_and_what_the_runtime_says():
    values = {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 5}
    made = rendered("trainjob", values | {"gang": "volcano", "priorityClassName": "high"})
    assert made["TrainJob"]["spec"]["activeDeadlineSeconds"] == 60
    runtime = made["TrainingRuntime"]["spec"]
    assert runtime["podGroupPolicy"] == {"volcano": {}}
    inner = runtime["template"]["spec"]
    assert inner["ttlSecondsAfterFinished"] == 5
    assert "activeDeadlineSeconds" not in str(inner) and "DeadlineExceeded" not in str(inner)
    assert "group-min-member" not in str(inner)
    coscheduling = rendered("trainjob", {"gang": "coscheduling"})["TrainingRuntime"]["spec"]
    assert coscheduling["podGroupPolicy"]["coscheduling"] == {"scheduleTimeoutSeconds": 1800}


def test_a_runtime_for_many_jobs_names_none_of_them():
    (runtime,) = documents("runtime", workload(name="shared"), settings(env={"A": "1"}))
    assert runtime["kind"] == "ClusterTrainingRuntime"
    assert "subdomain" not in runtime["spec"]["template"]["spec"]["network"]
    env = [entry["name"] for entry in task(templates(runtime)[0][2])["env"]]
    assert "A" in env and "TFDIST_SECRET" not in env
    (runtime,) = documents("runtime", workload(name="shared", namespace="team"))
    assert runtime["kind"] == "TrainingRuntime"


def test_a_job_in_a_shared_runtime_brings_what_is_its_own():
    values = {
        "runtime": "shared",
        "env": {"A": "1"},
        "labels": {"team": "x"},
        "volumes": ["runs:/runs"],
        "nodeSelector": {"disk": "ssd"},
        "securityContext": {"readOnlyRootFilesystem": True},
    }
    made = rendered("trainjob", values)
    assert list(made) == ["NetworkPolicy", "Secret", "TrainJob"]
    spec = made["TrainJob"]["spec"]
    assert spec["runtimeRef"]["kind"] == "ClusterTrainingRuntime"
    assert spec["runtimeRef"]["name"] == "shared"
    env = {entry["name"]: entry for entry in spec["trainer"]["env"]}
    assert env["A"]["value"] == "1"
    assert env["TFDIST_SECRET"]["valueFrom"]["secretKeyRef"]["name"] == "job-tfdist"
    (patch,) = spec["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert job["name"] == "node"
    pod = job["template"]["spec"]["template"]
    assert pod["metadata"] == {"labels": {"team": "x"}}
    assert set(pod["spec"]) == {"nodeSelector", "volumes", "containers"}
    (container,) = pod["spec"]["containers"]
    assert container["name"] == "node" and "env" not in container
    assert container["volumeMounts"] == [{"name": "claim-runs", "mountPath": "/runs"}]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "runtimePatches" not in rendered("trainjob", {"runtime": "shared"})["TrainJob"]["spec"]


@pytest.mark.parametrize(
    ("values", "ps", "said"),
    [
        ({"priorityClassName": "high"}, 0, "cannot change its runtime's priorityClassName"),
        ({"envFrom": [{"secretRef": {"name": "s"}}]}, 0, "cannot change its runtime's envFrom"),
        ({"gang": "volcano"}, 0, "cannot change its runtime's gang"),
        ({"ttlSecondsAfterFinished": 0}, 0, "cannot change its runtime's ttlSec"),
        ({}, 1, "has no parameter servers"),
    ],
)
def test_what_only_the_runtime_can_say_is_refused(values, ps, said):
    with pytest.raises(ConfigError, match=said) as caught:
        rendered("trainjob", {**values, "runtime": "shared"}, ps=ps)
    assert str(caught.value).startswith("render(--runtime): ")


def test_a_runtime_has_no_parameter_servers():
    with pytest.raises(ConfigError, match=r"render\(--ps\): a shared runtime has none"):
        documents("runtime", workload(ps=1))


def test_sizes_of_roles_reach_the_job():
    made = rendered("trainjob", {"roles": {"worker": {"cpus": 7}, "ps": {"memory": "1Gi"}}}, ps=1)
    given = made["TrainJob"]["spec"]["trainer"]["resourcesPerNode"]
    assert given["limits"]["cpu"] == given["requests"]["cpu"] == "7"
    ps = pods("trainjob", {"roles": {"ps": {"memory": "1Gi"}}}, ps=1)["ps"]
    assert task(ps)["resources"]["limits"] == {"cpu": "4", "memory": "1Gi"}
