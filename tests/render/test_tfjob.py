"""A TFJob: what its operator acts on."""

from .jobs import pods, rendered


def test_roles_and_restart():
    for ps, roles in [(0, {"Worker": 3}), (2, {"Chief": 1, "PS": 2, "Worker": 3})]:
        manifest = rendered("tfjob", workers=3, ps=ps)["TFJob"]
        assert manifest["apiVersion"] == "kubeflow.org/v1"
        replicas = manifest["spec"]["tfReplicaSpecs"]
        assert {kind: spec["replicas"] for kind, spec in replicas.items()} == roles
        assert {spec["restartPolicy"] for spec in replicas.values()} == {"ExitCode"}
        # The chief's end is the end of a job that has one.
        assert manifest["spec"].get("successPolicy") == (None if ps else "AllWorkers")
        for template in pods("tfjob", workers=3, ps=ps).values():
            assert "restartPolicy" not in template["spec"]
            # The operator tells no other container of its peers.
            assert [one["name"] for one in template["spec"]["containers"]] == ["tensorflow"]
            assert template["spec"]["containers"][0]["command"] == ["tfdist", "train"]


def test_deadline_ttl_and_gang():
    values = {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 0}
    gang = {"gang": "coscheduling", "priorityClassName": "high"}
    manifest = rendered("tfjob", values | gang, ps=2)["TFJob"]
    assert manifest["spec"]["runPolicy"] == {
        "cleanPodPolicy": "Running",
        **values,
        "schedulingPolicy": {"minAvailable": 5, "priorityClass": "high"},
    }
    for template in pods("tfjob", gang, ps=2).values():
        assert template["spec"]["schedulerName"] == "scheduler-plugins-scheduler"
