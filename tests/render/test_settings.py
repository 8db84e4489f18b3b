"""A values file: what it may hold, and one line for what it may not."""

import pytest

from tfdist.errors import ConfigError
from tfdist.render.settings import Settings, Size

from .jobs import settings


def file(tmp_path, text):
    path = tmp_path / "values.yaml"
    path.write_text(text)
    return str(path)


def test_a_file_is_read(tmp_path):
    found = Settings.from_file(
        file(
            tmp_path,
            "queue: team\nroles: {worker: {cpus: 16, gpus: 2}}\nlabels: {a: b}\naffinity: null\n"
            "volumes: ['runs:/runs/', 'secret/k:/k:ro']\n",
        )
    )
    assert found.queue == "team" and found.labels == {"a": "b"}
    assert found.sizes == {"worker": Size(cpus="16", gpus=2)}
    assert found.volumes == [("claim", "runs", "/runs", False), ("secret", "k", "/k", True)]
    assert found.affinity == {}


def test_what_is_given_later_counts():
    first = settings(
        queue="a", labels={"x": "1", "y": "1"}, imagePullSecrets=["a"], ttlSecondsAfterFinished=5
    )
    found = first.overridden(
        settings(queue="b", labels={"y": "2"}, imagePullSecrets=["b"], ttlSecondsAfterFinished=0)
    )
    assert (found.queue, found.ttl) == ("b", 0)
    assert found.labels == {"x": "1", "y": "2"}
    assert found.pull_secrets == ["a", "b"]
    assert first.overridden(Settings()) == first


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodeselector: {a: b}", "nodeselector: is not a key here; allowed: labels, annotations,"),
        ("labels: {a: 1}", "labels.a: 1 is a number; give a string, in quotes"),
        ("labels: {a: 'x y'}", "labels.a: 'x y' is not a label's value"),
        ("labels: {'a b': x}", "labels: 'a b' is not a key such as"),
        ("labels: x", "labels: 'x' is a string; give an object"),
        ("queue: No Queue", "queue: 'No Queue' is not a name"),
        ("gang: slurm", "gang: 'slurm' is given; allowed: volcano, coscheduling"),
        ("activeDeadlineSeconds: 0", "activeDeadlineSeconds: 0 is given; allowed: a whole"),
        ("ttlSecondsAfterFinished: -1", "ttlSecondsAfterFinished: -1 is given"),
        ("env: {1A: x}", "env: '1A' is not the name of a variable"),
        ("env: {A: 1}", "env.A: 1 is a number; give a string"),
        ("env: {A: {secretRef: {}}}", "env.A: 'secretRef' is not a key here"),
        ("env: {A: {}}", "env.A: has 0 sources; give one of secretKeyRef"),
        ("env: {TF_CONFIG: x}", "env.TF_CONFIG: tells a task its place"),
        ("env: {PET_NNODES: '2'}", "env.PET_NNODES: tells a task its place"),
        ("envFrom: [{secretRef: {name: s}, configMapRef: {name: c}}]", "envFrom[0]: "),
        ("envFrom: [{secretRef: {name: 1}}]", "envFrom[0].secretRef.name: 1 is a number"),
        ("envFrom: {}", "envFrom: {} is an object; give a list"),
        ("volumes: ['runs']", "volumes[0]: 'runs' is not like CLAIM:/PATH"),
        ("volumes: ['Runs:/x']", "volumes[0]: 'Runs:/x' is not like CLAIM:/PATH"),
        ("volumes: ['runs:/']", "volumes[0]: 'runs:/' is not like CLAIM:/PATH"),
        ("roles: {boss: {}}", "roles: 'boss' is not a key here; allowed: chief, worker, ps"),
        ("roles: {worker: {cpu: 1}}", "roles.worker: 'cpu' is not a key here; allowed: cpus"),
        ("roles: {worker: {cpus: 0}}", "roles.worker.cpus: 0 is not a quantity above 0"),
        ("roles: {worker: {memory: 8 GB}}", "roles.worker.memory: '8 GB' is not a quantity"),
        ("roles: {worker: {gpus: -1}}", "roles.worker.gpus: -1 is given; allowed: a whole"),
        ("gpuResource: gpu", "gpuResource: 'gpu' is not a resource such as nvidia.com/gpu"),
        ("sharedMemory: many", "sharedMemory: 'many' is not a quantity"),
        ("tolerations: [{operator: In}]", "tolerations[0].operator: 'In' is given"),
        ("tolerations: [{value: x}]", "tolerations[0]: has no key"),
        ("tolerations: [{key: a, effect: x}]", "tolerations[0].effect: 'x' is given"),
        ("tolerations: [{key: a, operator: Exists, value: b}]", "tolerations[0].value: "),
        ("tolerations: [{key: a, tolerationSeconds: 3}]", "tolerations[0].tolerationSeconds: "),
        ("affinity: {podaffinity: {}}", "affinity: 'podaffinity' is not a key here"),
        ("priorityClassName: High", "priorityClassName: 'High' is not a name"),
        ("imagePullSecrets: [{name: a}]", "imagePullSecrets[0]: {'name': 'a'} is an object"),
        ("securityContext: []", "securityContext: [] is a list; give an object"),
        ("securityContext: {a: 2020-01-01}", "datetime.date(2020, 1, 1) is a date; write it in"),
        ("securityContext: &a {b: *a}", "has more than 100000 values, or more than 50 levels"),
        ("- a", "['a'] is a list; give an object"),
        ("a: 1\n---\nb: 1", "has 2 documents; give a file of values"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_mistake_is_named(tmp_path, text, said):
    path = file(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        Settings.from_file(path)
    assert str(caught.value).startswith(f"{path}: {said}")
    assert "\n" not in str(caught.value)


def test_anchors_that_multiply_are_refused(tmp_path):
    text = "labels: {a: &a0 [x]}\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
    )
    with pytest.raises(ConfigError, match="has more than 100000 values"):
        Settings.from_file(file(tmp_path, text))


def test_a_file_may_be_empty(tmp_path):
    assert Settings.from_file(file(tmp_path, "# queue: team\n")) == Settings()


def test_a_patch_is_metadata_and_spec(tmp_path):
    path = file(tmp_path, "spec: {tolerations: []}")
    assert Settings().with_patch(path).patches == {path: {"spec": {"tolerations": []}}}
    for text, said in {
        "containers: []": "'containers' is not a key here; allowed: metadata, spec",
        "spec: []": "spec: [] is a list; give an object",
    }.items():
        with pytest.raises(ConfigError) as caught:
            Settings().with_patch(file(tmp_path, text))
        assert str(caught.value).startswith(f"{path}: {said}")
