from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.errors import ConfigError

TWO = {"worker": ["host1:2222", "host2:2222"]}
PSS = {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"]}


def config(cluster: Any, role: Any = "worker", index: Any = 0, **more: Any) -> dict[str, Any]:
    return {"cluster": cluster, "task": {"type": role, "index": index}, **more}


def test_text_and_object_are_read_alike() -> None:
    cluster = Cluster.from_tf_config(json.dumps(config(TWO, index=1)))
    assert cluster == Cluster.from_tf_config(config(TWO, index=1))
    assert cluster.task == Task("worker", 1)
    assert str(cluster.task) == "worker/1"
    assert (cluster.task.address, cluster.task.host, cluster.task.port) == (
        "host2:2222",
        "host2",
        2222,
    )
    assert cluster.jobs == {"worker": ("host1:2222", "host2:2222")}
    assert cluster.addresses == ("host1:2222", "host2:2222")
    assert not cluster.is_local and not cluster.is_chief and not cluster.has_ps
    assert cluster.num_workers == 2


def test_a_chief_is_a_worker_unless_there_are_ps() -> None:
    with_ps = Cluster.from_cluster_spec(PSS, "chief", 0)
    assert with_ps.is_chief and with_ps.has_ps and with_ps.num_workers == 2
    assert [str(task) for task in with_ps.tasks] == ["chief/0", "worker/0", "worker/1", "ps/0"]
    without = Cluster.from_cluster_spec({"chief": ["c:1"], "worker": ["w:1"]}, "worker", 0)
    assert without.num_workers == 2 and not without.is_chief and str(without.chief) == "chief/0"


def test_worker_0_is_chief_where_there_is_none() -> None:
    assert Cluster.from_cluster_spec(TWO).is_chief
    assert Cluster.from_cluster_spec(TWO).chief.address == "host1:2222"


def test_master_is_the_old_name_of_chief() -> None:
    cluster = Cluster.from_tf_config(config({"master": ["m:1"], "worker": ["w:1"]}, "master"))
    assert cluster.is_chief and cluster.jobs == {"chief": ("m:1",), "worker": ("w:1",)}


def test_keys_of_real_tfjobs_are_accepted() -> None:
    assert Cluster.from_tf_config(config(TWO, environment="cloud")).num_workers == 2


def test_an_evaluator_stands_outside_the_cluster_as_tfjob_has_it() -> None:
    cluster = Cluster.from_tf_config(config(TWO, "evaluator", 0))
    assert cluster.task.address is None and not cluster.is_chief
    assert "evaluator" not in cluster.jobs


def test_to_tf_config_gives_the_same_cluster() -> None:
    cluster = Cluster.from_cluster_spec(PSS, "worker", 1)
    assert Cluster.from_tf_config(cluster.to_tf_config()) == cluster
    assert Cluster.local().to_tf_config() == ""


def test_it_can_be_hashed_and_pickled() -> None:
    cluster = Cluster.from_cluster_spec(PSS)
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert len({cluster, Cluster.from_cluster_spec(PSS)}) == 1


def test_the_fingerprint_is_of_the_jobs_alone() -> None:
    one, two = (Cluster.from_cluster_spec(TWO, "worker", i) for i in (0, 1))
    assert one.fingerprint() == two.fingerprint()
    assert len(one.fingerprint()) == 64
    assert one.fingerprint() != Cluster.from_cluster_spec(PSS).fingerprint()


def test_a_cluster_spec_object_is_read_by_its_as_dict() -> None:
    class ClusterSpec:
        def as_dict(self) -> dict[str, list[str]]:
            return TWO

    assert Cluster.from_cluster_spec(ClusterSpec()).jobs == Cluster.from_cluster_spec(TWO).jobs


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": " \n"}])
def test_no_tf_config_is_one_local_task(environ: dict[str, str]) -> None:
    cluster = Cluster.from_environment(environ)
    assert cluster.is_local and cluster.is_chief and cluster.num_workers == 1
    assert cluster.tasks == (Task("worker", 0),) and cluster.addresses == ()


def test_tf_config_comes_before_all_else() -> None:
    environ = {
        "TF_CONFIG": json.dumps(config(TWO)),
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "2",
        "TFDIST_WORKERS": "a:1",
    }
    assert Cluster.from_environment(environ).source == "TF_CONFIG"


SHAPE = '{"cluster": {"worker": ["host:port"]}, "task": {"type": "worker", "index": 0}}'

MALFORMED = [
    ("nonsense", "TF_CONFIG: 'nonsense' is not JSON"),
    ('{"cluster": ', "TF_CONFIG: '{\"cluster\": ' is not JSON"),
    ("[1, 2]", f"TF_CONFIG: [1, 2] is a list, not an object; give {SHAPE}"),
    ("null", "TF_CONFIG: None is null, not an object"),
    ("7", "TF_CONFIG: 7 is a number, not an object"),
    ("NaN", "TF_CONFIG: NaN is not JSON"),
    ("9" * 5000, "TF_CONFIG: holds a number that is too long"),
    ("[" * 100_000, "TF_CONFIG: is nested too deeply"),
    ('{"cluster": 1, "cluster": 2}', "TF_CONFIG: the key 'cluster' is given twice"),
    ("{}", f"TF_CONFIG.cluster: is missing; give {SHAPE}"),
    ({"clusters": TWO}, "TF_CONFIG.cluster: is missing among 'clusters'"),
    ({"cluster": TWO}, "TF_CONFIG.task: is missing among 'cluster'"),
    (config(None), "TF_CONFIG.cluster: None is null, not an object"),
    (config([]), "TF_CONFIG.cluster: [] is a list, not an object"),
    (config({}), "TF_CONFIG.cluster: is empty"),
    (config({"worker": []}), "TF_CONFIG.cluster.worker: is empty"),
    (config({"worker": "a:1"}), "TF_CONFIG.cluster.worker: 'a:1' is a string, not a list"),
    (config({"worker": None}), "TF_CONFIG.cluster.worker: None is null, not a list"),
    (config({"worker": {"0": "a:1"}}), "TF_CONFIG.cluster.worker: is a sparse map"),
    (config({"gpu": ["a:1"]}), "TF_CONFIG.cluster: 'gpu' is not a role"),
    (config({3: ["a:1"]}), "TF_CONFIG.cluster: 3 is a number, not a role"),
    (config({"worker": [1]}), "TF_CONFIG.cluster.worker[0]: 1 is a number, not an address"),
    (config({"worker": [["a:1"]]}), "TF_CONFIG.cluster.worker[0]: ['a:1'] is a list"),
    (config({"worker": ["a:1", ""]}), "TF_CONFIG.cluster.worker[1]: the address is empty"),
    (config({"worker": ["a"]}), "TF_CONFIG.cluster.worker[0]: 'a' has no port"),
    (config({"worker": ["a:"]}), "TF_CONFIG.cluster.worker[0]: 'a:' has no port"),
    (config({"worker": [":1"]}), "TF_CONFIG.cluster.worker[0]: ':1' has no host"),
    (config({"worker": ["a:0"]}), "TF_CONFIG.cluster.worker[0]: 'a:0' has a bad port '0'"),
    (config({"worker": ["a:65536"]}), "TF_CONFIG.cluster.worker[0]: 'a:65536' has a bad port"),
    (config({"worker": ["a:-1"]}), "TF_CONFIG.cluster.worker[0]: 'a:-1' has a bad port"),
    (config({"worker": ["a:http"]}), "TF_CONFIG.cluster.worker[0]: 'a:http' has a bad port"),
    (config({"worker": ["a:1 "]}), "TF_CONFIG.cluster.worker[0]: 'a:1 ' has a bad port"),
    (config({"worker": ["a:²"]}), "TF_CONFIG.cluster.worker[0]: 'a:²' has a bad port"),
    (config({"worker": ["a b:1"]}), "TF_CONFIG.cluster.worker[0]: 'a b:1' has a bad host"),
    (config({"worker": ["a\n:1"]}), "TF_CONFIG.cluster.worker[0]: 'a\\n:1' has a bad host"),
    (config({"worker": ["$(IP):1"]}), "TF_CONFIG.cluster.worker[0]: '$(IP):1' has a bad host"),
    (config({"worker": ["1.2.3:1"]}), "TF_CONFIG.cluster.worker[0]: '1.2.3:1' has a bad IPv4"),
    (config({"worker": ["1.2.3.256:1"]}), "TF_CONFIG.cluster.worker[0]: '1.2.3.256:1' has a bad"),
    (config({"worker": ["0.0.0.0:1"]}), "TF_CONFIG.cluster.worker[0]: '0.0.0.0:1' is a wildcard"),
    (config({"worker": ["[::]:1"]}), "TF_CONFIG.cluster.worker[0]: '[::]:1' is a wildcard"),
    (config({"worker": ["::1:2222"]}), "TF_CONFIG.cluster.worker[0]: '::1:2222' is ambiguous"),
    (config({"worker": ["[::1]"]}), "TF_CONFIG.cluster.worker[0]: '[::1]' has no port"),
    (config({"worker": ["[::1:1"]}), "TF_CONFIG.cluster.worker[0]: '[::1:1' lacks the closing ]"),
    (config({"worker": ["[x]:1"]}), "TF_CONFIG.cluster.worker[0]: '[x]:1' has no IPv6 address"),
    (config({"worker": ["grpc://a:1"]}), "TF_CONFIG.cluster.worker[0]: 'grpc://a:1' is a URL"),
    (
        config({"worker": ["a:1", "b:1", "A:1"]}),
        "TF_CONFIG.cluster.worker[2]: 'A:1' is also worker[0]",
    ),
    (
        config({"worker": ["localhost:1", "127.0.0.1:1"]}),
        "TF_CONFIG.cluster.worker[1]: '127.0.0.1:1' is also worker[0]",
    ),
    (
        config({"chief": ["a:1"], "worker": ["a:1"]}),
        "TF_CONFIG.cluster.worker[0]: 'a:1' is also chief[0]",
    ),
    (config({"chief": ["a:1", "b:1"]}), "TF_CONFIG.cluster.chief: has 2 tasks"),
    (config({"master": ["a:1", "b:1"]}), "TF_CONFIG.cluster.master: has 2 tasks"),
    (
        config({"master": ["a:1"], "chief": ["b:1"]}),
        "TF_CONFIG.cluster: master and chief are the same role",
    ),
    (config({"ps": ["a:1"]}, "ps"), "TF_CONFIG.cluster.ps: there is a ps but no worker"),
    ({"cluster": TWO, "task": None}, "TF_CONFIG.task: None is null, not an object"),
    ({"cluster": TWO, "task": []}, "TF_CONFIG.task: [] is a list, not an object"),
    ({"cluster": TWO, "task": {"index": 0}}, "TF_CONFIG.task.type: is missing among 'index'"),
    ({"cluster": TWO, "task": {"type": "worker"}}, "TF_CONFIG.task.index: is missing among 'type'"),
    (config(TWO, None), "TF_CONFIG.task.type: None is null, not a role"),
    (config(TWO, "boss"), "TF_CONFIG.task.type: 'boss' is not a role"),
    (config(TWO, "ps"), "TF_CONFIG.task.type: 'ps' is not in cluster; it has worker"),
    (
        config(TWO, index=7),
        "TF_CONFIG.task.index: 7 is out of range; cluster.worker has 2 tasks (0 to 1)",
    ),
    (
        config({"worker": ["a:1"]}, index=1),
        "TF_CONFIG.task.index: 1 is out of range; cluster.worker has 1 task (0)",
    ),
    (config(TWO, index=-1), "TF_CONFIG.task.index: -1 is out of range"),
    (config(TWO, index=10**400), "TF_CONFIG.task.index: 1000"),
    (config(TWO, index=True), "TF_CONFIG.task.index: True is a boolean, not an integer"),
    (config(TWO, index=0.0), "TF_CONFIG.task.index: 0.0 is a number, not an integer"),
    (config(TWO, index="x"), "TF_CONFIG.task.index: 'x' is a string, not an integer"),
    (config({"worker": [], "ps": []}), "TF_CONFIG.cluster.worker: is empty, as are all others"),
    (config(TWO, index=None), "TF_CONFIG.task.index: None is null, not an integer"),
    (config(TWO, index=[0]), "TF_CONFIG.task.index: [0] is a list, not an integer"),
    (config(TWO, "evaluator", -1), "TF_CONFIG.task.index: -1 is out of range"),
]


@pytest.mark.parametrize(("given", "start"), MALFORMED)
def test_a_malformed_config_is_rejected_by_the_name_of_its_field(given: Any, start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster.from_tf_config(given)
    message = str(caught.value)
    assert message.startswith(start)
    assert "\n" not in message and len(message) < 300


@pytest.mark.parametrize(
    ("spec", "role", "index", "start"),
    [
        (TWO, "worker", 2, "task_index: 2 is out of range; cluster_spec.worker has 2 tasks"),
        (TWO, "worker", "0", "task_index: '0' is a string"),
        (TWO, "ps", 0, "task_type: 'ps' is not in cluster_spec; it has worker"),
        (TWO, "boss", 0, "task_type: 'boss' is not a role"),
        ({"worker": ["a"]}, "worker", 0, "cluster_spec.worker[0]: 'a' has no port"),
        ({"worker": {3: "a:1"}}, "worker", 3, "cluster_spec.worker: is a sparse map"),
        ("a:1", "worker", 0, "cluster_spec: 'a:1' is a string"),
    ],
)
def test_a_malformed_spec_is_named_too(spec: Any, role: Any, index: Any, start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster.from_cluster_spec(spec, role, index)
    assert str(caught.value).startswith(start)


@pytest.mark.parametrize("address", ["[::1]:2222", "my_host:1", "a.b.:65535", "10.0.0.1:80"])
def test_unusual_addresses_that_work_are_accepted(address: str) -> None:
    assert Cluster.from_cluster_spec({"worker": [address]}).task.address == address


def test_what_tensorflow_accepts_is_accepted() -> None:
    cluster = Cluster.from_tf_config(config({"worker": ["a:1", "b:1"], "ps": []}, index="1"))
    assert str(cluster.task) == "worker/1" and not cluster.has_ps
