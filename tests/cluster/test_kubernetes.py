from __future__ import annotations

import pytest

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError

JOB = {"TFDIST_WORKERS": "train-worker-0-[0-2].train:2222", "JOB_COMPLETION_INDEX": "1"}


def test_an_indexed_job() -> None:
    cluster = Cluster.from_environment(JOB)
    assert str(cluster.task) == "worker/1" and cluster.num_workers == 3
    assert cluster.task.address == "train-worker-0-1.train:2222"
    assert cluster.source == "Kubernetes"


def test_a_jobset_with_ps() -> None:
    environ = {**JOB, "TFDIST_CHIEF": "c.train:1", "TFDIST_PS": "p0:1, p1:1"}
    cluster = Cluster.from_environment({**environ, "TFDIST_TASK_TYPE": "ps"})
    assert str(cluster.task) == "ps/1" and cluster.task.address == "p1:1"
    assert str(cluster.chief) == "chief/0"


def test_ipv6_addresses_are_no_ranges() -> None:
    environ = {"TFDIST_WORKERS": "[fd00::1]:1,[fd00::2]:1", "TFDIST_TASK_INDEX": "1"}
    assert Cluster.from_environment(environ).task.address == "[fd00::2]:1"


def test_an_index_alone_is_refused_where_there_are_other_pods() -> None:
    assert Cluster.from_environment({"JOB_COMPLETION_INDEX": "0"}).is_local
    alone = {"JOB_COMPLETION_INDEX": "1", "TFDIST_WORKERS": ""}
    assert Cluster.from_environment(alone).is_local
    with pytest.raises(ConfigError, match="^JOB_COMPLETION_INDEX: '1' means that there are other"):
        Cluster.from_environment({"JOB_COMPLETION_INDEX": "1"})


PET = {
    "PET_NNODES": "3",
    "PET_NODE_RANK": "2",
    "PET_MASTER_ADDR": "digits-node-0-0.digits",
    "PET_MASTER_PORT": "29400",
    "PET_NPROC_PER_NODE": "auto",
    "JOB_COMPLETION_INDEX": "2",
}
JAX = {
    "JAX_NUM_PROCESSES": "3",
    "JAX_PROCESS_ID": "2",
    "JAX_COORDINATOR_ADDRESS": "digits-node-0-0.digits:29400",
    "JOB_COMPLETION_INDEX": "2",
}


@pytest.mark.parametrize("environ", [PET, JAX])
def test_the_pods_of_a_trainjob(environ: dict[str, str]) -> None:
    cluster = Cluster.from_environment(environ)
    assert str(cluster.task) == "worker/2" and cluster.source == "TrainJob"
    assert cluster.addresses == tuple(f"digits-node-0-{i}.digits:29400" for i in range(3))


def test_a_trainjob_of_one_pod_is_a_local_task() -> None:
    assert Cluster.from_environment({"PET_NNODES": "1", "PET_NODE_RANK": "0"}).is_local


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({"PET_NNODES": "1:4"}, "PET_NNODES: '1:4' is not an integer; give a fixed number"),
        ({"PET_NODE_RANK": ""}, "PET_NODE_RANK: '' is not an integer"),
        ({"PET_NODE_RANK": "3"}, "PET_NODE_RANK: 3 is out of range"),
        ({"PET_MASTER_ADDR": ""}, "PET_MASTER_ADDR: is not set"),
        ({"PET_MASTER_ADDR": "10.0.0.1"}, "PET_MASTER_ADDR: '10.0.0.1' is not like"),
        ({"PET_MASTER_PORT": "x"}, "PET_MASTER_PORT: 'x' is not an integer"),
    ],
)
def test_what_is_no_trainjob(change: dict[str, str], start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster.from_environment({**PET, **change})
    assert str(caught.value).startswith(start)


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({"JOB_COMPLETION_INDEX": ""}, "JOB_COMPLETION_INDEX: is not set"),
        ({"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX: 'x' is not an integer"),
        ({"JOB_COMPLETION_INDEX": "3"}, "JOB_COMPLETION_INDEX: 3 is out of range"),
        ({"TFDIST_TASK_TYPE": "ps"}, "TFDIST_TASK_TYPE: there is no TFDIST_PS"),
        ({"TFDIST_WORKERS": "a,b"}, "TFDIST.worker[0]: 'a' has no port"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, str], start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster.from_environment({**JOB, **change})
    assert str(caught.value).startswith(start)
