"""A JobSet: each pod finds its cluster, and exit codes are acted on."""

import re

import pytest

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError

from .jobs import pods, rendered, task
from .webhooks import templates


@pytest.mark.parametrize(("workers", "ps"), [(1, 0), (4, 0), (2, 1), (3, 2)])
def test_each_pod_finds_its_cluster(workers, ps):
    manifest = rendered("jobset", workers=workers, ps=ps)["JobSet"]
    network = manifest["spec"]["network"]
    assert network["enableDNSHostnames"] and network["publishNotReadyAddresses"]
    for role, replicas, template in templates(manifest):
        container = task(template)
        env = {e["name"]: e["value"] for e in container["env"] if "value" in e}
        port = container["ports"][0]["containerPort"]
        for index in range(replicas):
            # Kubernetes sets the index of an indexed Job's pod.
            cluster = Cluster.from_environment({**env, "JOB_COMPLETION_INDEX": str(index)})
            assert (cluster.task.type, cluster.task.index) == (role, index)
            assert env["TFDIST_WAIT"] == "1800"
            # JobSet's rule: <jobset>-<replicated job>-<job index>-<pod index>.<subdomain>
            host = f"job-{role}-0-{index}.{network['subdomain']}"
            assert cluster.task.address == f"{host}:{port}"
            assert len(cluster.tasks) == workers + ps + bool(ps)


def test_exit_codes():
    manifest = rendered("jobset", ps=1)["JobSet"]
    rules = manifest["spec"]["failurePolicy"]["rules"]
    assert [(rule["action"], rule["onJobFailureReasons"]) for rule in rules] == [
        ("FailJobSet", ["PodFailurePolicy"])
    ]
    assert all(re.fullmatch("[A-Za-z][A-Za-z0-9_,:]*", rule["name"]) for rule in rules)
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
    (only,) = rendered("jobset")["JobSet"]["spec"]["replicatedJobs"]
    assert only["template"]["spec"]["backoffLimit"] == 0


def test_deadline_and_ttl():
    values = {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 5}
    spec = rendered("jobset", values, ps=1)["JobSet"]["spec"]
    assert spec["ttlSecondsAfterFinished"] == 5
    for job in spec["replicatedJobs"]:
        assert job["template"]["spec"]["activeDeadlineSeconds"] == 60
    # Otherwise all tasks would start again after it.
    assert spec["failurePolicy"]["rules"][0]["onJobFailureReasons"][-1] == "DeadlineExceeded"


def test_gang():
    spec = rendered("jobset", {"gang": "volcano"}, ps=1)["JobSet"]["spec"]
    for job in spec["replicatedJobs"]:
        annotations = job["template"]["metadata"]["annotations"]
        members = str(job["template"]["spec"]["completions"])
        assert annotations == {"scheduling.volcano.sh/group-min-member": members}
    for template in pods("jobset", {"gang": "volcano"}).values():
        assert template["spec"]["schedulerName"] == "volcano"
    with pytest.raises(ConfigError, match=r"render\(--gang\): coscheduling needs a PodGroup"):
        rendered("jobset", {"gang": "coscheduling"})
