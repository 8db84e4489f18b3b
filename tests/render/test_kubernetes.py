"""What is rendered passes schemas, webhooks and Pod Security, in every mix of options."""

import itertools

import kubernetes_validate
import pytest

from tests.selected import some
from tfdist.errors import ConfigError
from tfdist.render.kubernetes import KINDS, documents
from tfdist.render.settings import Settings

from .jobs import pods, rendered, settings, task, workload
from .webhooks import not_restricted, refusals, templates

JOBS = ("tfjob", "jobset", "trainjob")
ROLES = {"alone": (1, 0), "workers": (100, 0), "ps": (3, 2)}
VOLUMES = {"none": [], "two": ["runs:/runs", "secret/keys:/keys:ro"]}
PLACING = {
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"podAntiAffinity": {}},
    "serviceAccountName": "trainer",
    "imagePullSecrets": ["registry"],
    "podSecurityContext": {"fsGroup": 1000},
}
POLICIES = {
    "none": {},
    "placed": {
        **PLACING,
        "labels": {"team": "x"},
        "annotations": {"a.b/c": "d"},
        "queue": "q",
        "env": {"A": "1"},
    },
    "limited": {
        "activeDeadlineSeconds": 3600,
        "ttlSecondsAfterFinished": 0,
        "gang": "volcano",
        "priorityClassName": "high",
        "envFrom": [{"secretRef": {"name": "s3"}}, {"configMapRef": {"name": "c"}, "prefix": "P_"}],
        "env": {"TOKEN": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        "roles": {"worker": {"cpus": 16, "memory": "64Gi"}, "ps": {"cpus": "500m", "gpus": 1}},
        "gpuResource": "amd.com/gpu",
        "sharedMemory": "8Gi",
    },
}


def faults(made):
    return [fault for document in made for fault in refusals(document)]


MIXES = list(itertools.product(JOBS, ROLES, [0, 1, 8], VOLUMES, POLICIES))


@pytest.mark.parametrize(
    ("kind", "roles", "gpus", "volumes", "policy"), some(MIXES, MIXES[::5] + MIXES[-1:])
)
def test_nothing_refuses_what_is_rendered(kind, roles, gpus, volumes, policy):
    workers, ps = ROLES[roles]
    work = workload(name="j" * 40, workers=workers, ps=ps, gpus_per_worker=gpus)
    made = documents(kind, work, settings(volumes=VOLUMES[volumes], **POLICIES[policy]))
    assert faults(made) == []


@pytest.mark.parametrize("policy", ["none", "placed"])
@pytest.mark.parametrize("gpus", [0, 8])
def test_nothing_refuses_a_runtime_and_its_jobs(gpus, policy):
    values = {"volumes": VOLUMES["two"], **POLICIES[policy], "runtime": "tfdist"}
    made = documents("trainjob", workload(gpus_per_worker=gpus), settings(**values))
    assert faults([*made, *documents("runtime", workload(name="tfdist"))]) == []


def pod(document):
    return templates(document)[0][2]["spec"]


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (
            "jobset",
            lambda job: job["spec"]["failurePolicy"]["rules"][0].update(name="failed-for-good"),
            "is no name of a rule",
        ),
        ("jobset", lambda job: pod(job).update(hostNetwork=True), "hostNetwork is given"),
        ("tfjob", lambda job: pod(job)["securityContext"].clear(), "tensorflow: runAsNonRoot"),
        (
            "tfjob",
            lambda job: pod(job)["containers"].append({"name": "side", "image": "i"}),
            "side: capabilities.drop",
        ),
        ("tfjob", lambda job: pod(job).update(tolerations=[{"x": 1}]), "Additional properties"),
        ("tfjob", lambda job: job["spec"].update(replica=1), "spec: replica is no field"),
        ("runtime", lambda job: job["spec"]["mlPolicy"].update(jax={}), "more than one policy"),
        ("trainjob", lambda job: job["spec"]["trainer"].update(images=1), "images is no field"),
    ],
)
def test_each_check_finds_its_fault(kind, change, said):
    made = documents(kind, workload())
    change(made[-1])
    assert any(said in fault for fault in faults(made))


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize("ps", [0, 1])
def test_pods_are_restricted_without_options(kind, ps):
    for template in pods(kind, ps=ps).values():
        assert list(not_restricted(template["spec"])) == []
        # Such a user may be chosen by the image or by the cluster.
        assert "runAsUser" not in template["spec"]["securityContext"]


@pytest.mark.parametrize("kind", JOBS)
def test_strangers_are_kept_from_the_job(kind):
    made = rendered(kind, namespace="team", ps=1)
    policy, secret = made["NetworkPolicy"], made["Secret"]
    for manifest in (policy, secret):
        kubernetes_validate.validate(manifest, "1.33", strict=True)
        assert manifest["metadata"]["namespace"] == "team"
    label = policy["spec"]["podSelector"]["matchLabels"]
    assert list(label.values()) == ["job"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": label}}]}]
    assert len(secret["stringData"]["secret"]) == 64
    assert rendered(kind)["Secret"]["stringData"] != secret["stringData"]
    for template in pods(kind, ps=1).values():
        (entry,) = [one for one in task(template)["env"] if one["name"] == "TFDIST_SECRET"]
        reference = entry["valueFrom"]["secretKeyRef"]
        assert reference == {"name": secret["metadata"]["name"], "key": "secret"}


def test_a_secret_that_is_there_is_used():
    assert list(rendered("jobset", secret="team-secret")) == ["NetworkPolicy", "JobSet"]
    template = pods("jobset", secret="team-secret")["worker"]
    assert "team-secret" in str(task(template)["env"])


def test_only_a_trainjob_has_a_runtime():
    for kind in set(KINDS) - {"trainjob"}:
        with pytest.raises(ConfigError, match=r"render\(--runtime\): 'tfdist' is given"):
            documents(kind, workload(), Settings(runtime="tfdist"))


@pytest.mark.parametrize("kind", JOBS)
def test_labels_annotations_and_the_queue(kind):
    made = rendered(
        kind, {"labels": {"team": "x"}, "annotations": {"note": "y"}, "queue": "q"}, ps=1
    )
    *others, job = made.values()
    assert job["metadata"]["labels"] == {"team": "x", "kueue.x-k8s.io/queue-name": "q"}
    assert job["metadata"]["annotations"] == {"note": "y"}
    for other in others:
        assert other["metadata"]["labels"]["team"] == "x"
        assert "kueue.x-k8s.io/queue-name" not in other["metadata"]["labels"]
    for document in made.values():
        for _, _, template in templates(document):
            # Kueue would admit pods that have the label one by one.
            assert template["metadata"]["labels"] == {"team": "x"}
            assert template["metadata"]["annotations"] == {
                "sidecar.istio.io/inject": "false",
                "note": "y",
            }
