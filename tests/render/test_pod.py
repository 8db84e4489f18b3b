"""The pods of a job: what their container has, and what a patch changes."""

import pytest

from tfdist.errors import ConfigError
from tfdist.render.settings import Settings

from .jobs import KINDS, pods, rendered, settings, task, workload


def test_gpus_are_for_workers_unless_a_role_says_so():
    for kind in KINDS:
        made = pods(kind, ps=1, gpus_per_worker=4)
        for role, template in made.items():
            limits = task(template)["resources"]["limits"]
            assert limits.get("nvidia.com/gpu") == (4 if role == "worker" else None)
            assert ("volumes" in template["spec"]) == (role == "worker")
    made = pods("jobset", {"roles": {"ps": {"gpus": 1}, "worker": {"gpus": 0}}}, ps=1)
    assert "nvidia.com/gpu" in task(made["ps"])["resources"]["limits"]
    assert "nvidia.com/gpu" not in task(made["worker"])["resources"]["limits"]


@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.5gb", "amd.com/gpu"])
def test_the_resource_of_a_gpu(resource):
    limits = task(pods("tfjob", {"gpuResource": resource}, gpus_per_worker=2)["worker"])
    assert limits["resources"]["limits"] == {"cpu": "4", "memory": "8Gi", resource: 2}
    assert limits["resources"]["requests"] == limits["resources"]["limits"]


@pytest.mark.parametrize(
    ("values", "gpus", "size"),
    [({}, 1, None), ({}, 2, "1Gi"), ({"sharedMemory": "8Gi"}, 0, "8Gi")],
)
def test_shared_memory_has_a_limit(values, gpus, size):
    template = pods("jobset", values, gpus_per_worker=gpus)["worker"]
    found = {one["name"]: one for one in template["spec"].get("volumes", [])}
    if size is None:
        assert "shm" not in found
    else:
        assert found["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": size}
        mounts = task(template)["volumeMounts"]
        assert {"name": "shm", "mountPath": "/dev/shm"} in mounts


def test_volumes():
    volumes = ["runs:/runs", "runs:/other", "secret/keys:/keys:ro", "configmap/words:/words"]
    template = pods("tfjob", {"volumes": volumes})["worker"]
    assert task(template)["volumeMounts"] == [
        {"name": "claim-runs", "mountPath": "/runs"},
        {"name": "claim-runs", "mountPath": "/other"},
        {"name": "secret-keys", "mountPath": "/keys", "readOnly": True},
        {"name": "configmap-words", "mountPath": "/words"},
    ]
    assert template["spec"]["volumes"] == [
        {"name": "claim-runs", "persistentVolumeClaim": {"claimName": "runs"}},
        {"name": "secret-keys", "secret": {"secretName": "keys"}},
        {"name": "configmap-words", "configMap": {"name": "words"}},
    ]
    for twice in (["a:/x", "b:/x"], ["a:/dev/shm"]):
        with pytest.raises(ConfigError, match="volumes: two are to be mounted at"):
            pods("tfjob", {"volumes": twice})


def test_where_pods_run_and_as_whom():
    values = {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "serviceAccountName": "trainer",
        "imagePullSecrets": ["registry"],
    }
    spec = pods("jobset", values)["worker"]["spec"]
    assert {name: spec[name] for name in values} == {
        **values,
        "imagePullSecrets": [{"name": "registry"}],
    }


def test_variables():
    values = {
        "env": {"A": "1", "TOKEN": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        "envFrom": [{"secretRef": {"name": "s3"}}],
    }
    container = task(pods("tfjob", values)["worker"])
    assert container["envFrom"] == values["envFrom"]
    env = {entry["name"]: entry for entry in container["env"]}
    assert env["A"] == {"name": "A", "value": "1"}
    assert env["TOKEN"]["valueFrom"] == values["env"]["TOKEN"]
    assert len(env) == len(container["env"])
    # What the user says counts, also of what is set otherwise.
    container = task(pods("jobset", {"env": {"TFDIST_WAIT": "60"}})["worker"])
    assert [e["value"] for e in container["env"] if e["name"] == "TFDIST_WAIT"] == ["60"]


def test_security_contexts_are_changed_field_by_field():
    values = {
        "podSecurityContext": {"fsGroup": 1000, "runAsNonRoot": None},
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    }
    template = pods("tfjob", values)["worker"]
    assert template["spec"]["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"},
        "fsGroup": 1000,
    }
    assert task(template)["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }


def patched(patch, kind="jobset"):
    from tfdist.render.kubernetes import documents

    from .webhooks import templates

    made = documents(kind, workload(ps=1), Settings(patches={"p.yaml": patch}))
    return [template for one in made for _, _, template in templates(one)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_patch_reaches_every_pod(kind):
    made = patched(
        {
            "metadata": {"labels": {"a": "b"}},
            "spec": {
                "priorityClassName": "high",
                "containers": [
                    {"name": "tensorflow", "env": [{"name": "TFDIST_SECRET", "value": "x"}]},
                    {"name": "side", "image": "i"},
                ],
            },
        },
        kind,
    )
    assert len(made) == 3
    for template in made:
        assert template["metadata"]["labels"] == {"a": "b"}
        assert template["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
        assert template["spec"]["priorityClassName"] == "high"
        container, side = template["spec"]["containers"]
        assert side == {"name": "side", "image": "i"}
        assert container["name"] == ("node" if kind == "trainjob" else "tensorflow")
        assert container["command"] == ["tfdist", "train"]
        (entry,) = [one for one in container["env"] if one["name"] == "TFDIST_SECRET"]
        assert entry["value"] == "x"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"containers": None}, "p.yaml: spec.containers: removes tensorflow"),
        (
            {"containers": [{"name": "tensorflow", "$patch": "delete"}]},
            "p.yaml: spec.containers: removes tensorflow",
        ),
        (
            {"containers": [{"image": "i"}]},
            "p.yaml: spec.containers: [{'image': 'i'}] is not",
        ),
        ({"containers": ["x"]}, "p.yaml: spec.containers: ['x'] is not a list of things with"),
        (
            {"containers": [{"name": "tensorflow", "env": ["A"]}]},
            "p.yaml: spec.containers.tensorflow.env: ['A'] is not a list of things with names",
        ),
        ({"containers": "x"}, "p.yaml: spec.containers: 'x' is a string; give a list"),
        ({"restartPolicy": "Always"}, "p.yaml: spec.restartPolicy: changes 'Never'"),
    ],
)
def test_a_patch_that_breaks_the_job_is_refused(spec, said):
    with pytest.raises(ConfigError) as caught:
        patched({"spec": spec})
    assert str(caught.value).startswith(said)


def test_settings_do_not_change_with_what_is_made_of_them():
    values = settings(volumes=["runs:/runs"], tolerations=[{"operator": "Exists"}])
    before = repr(values)
    for kind in KINDS:
        pods(kind, {"volumes": ["runs:/runs"]})
    assert repr(values) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_variable_to_fill_in_is_one_of_the_pods(kind):
    asked = {"command": ["x", "$NODE"], "expand": ["NODE"]}
    message = r"render\(--expand\): 'NODE' is not a variable of the pods; give it one with --env"
    with pytest.raises(ConfigError, match=message):
        pods(kind, **asked)
    name = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    for values in ({"env": {"NODE": name}}, {"envFrom": [{"secretRef": {"name": "s"}}]}):
        made = rendered(kind, values, **asked)
        assert "$(NODE)" in str(made)
