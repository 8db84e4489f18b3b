"""Other starters' variables: where they show other processes, nobody trains alone unasked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError

POOLS = {"cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222", "c:2222"]}}
SEVERAL = [
    ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE: '2' means that there are other processes"),
    ({"WORLD_SIZE": "2", "RANK": "1"}, "WORLD_SIZE: '2' means that there are other processes"),
    ({"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "0"}, "MV2_COMM_WORLD_SIZE: '2' means"),
    ({"FLUX_JOB_SIZE": "2", "FLUX_TASK_RANK": "1"}, "FLUX_JOB_SIZE: '2' means"),
    ({"LSB_MCPU_HOSTS": "a 4 b 4"}, "LSB_MCPU_HOSTS: means that the job has 2 machines"),
    ({"LSB_HOSTS": "a a b b b"}, "LSB_HOSTS: means that the job has 2 machines"),
    ({"NHOSTS": "3", "PE_HOSTFILE": "/x"}, "NHOSTS: means that the job has 3 machines"),
    ({"AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5"}, "AZ_BATCH_HOST_LIST: means that the job has 2"),
    ({"AZ_BATCH_NODE_LIST": "10.0.0.4;10.0.0.5"}, "AZ_BATCH_NODE_LIST: means that the job has 2"),
    ({"CLUSTER_SPEC": json.dumps(POOLS)}, "CLUSTER_SPEC: means that the job has 3 machines"),
]
ONE = [
    {"WORLD_SIZE": "1", "RANK": "0"},
    {"WORLD_SIZE": "4"},  # A variable of the user's own.
    {"LSB_MCPU_HOSTS": "a 4", "LSB_HOSTS": "a a a a"},
    {"NHOSTS": "1", "PE_HOSTFILE": "/x"},
    {"NHOSTS": "3"},
    {"NHOSTS": "x", "PE_HOSTFILE": "/x"},
    {"AZ_BATCH_HOST_LIST": "10.0.0.4"},
    {"CLUSTER_SPEC": "nonsense"},
    {"CLUSTER_SPEC": "[1]"},
    {"CLUSTER_SPEC": '{"cluster": {"workerpool0": ["a:2222"]}}'},
    {"CLUSTER_SPEC": '{"cluster": 1}'},
    {"PBS_NODEFILE": "/not/there"},
    {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"},
]


@pytest.mark.parametrize(("environ", "line"), SEVERAL, ids=[str(case[0]) for case in SEVERAL])
def test_one_of_several_is_refused(environ: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster.from_environment(environ)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)
    assert Cluster.from_environment({**environ, "TFDIST_WORKERS": ""}).is_local
    task = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    assert not Cluster.from_environment({**environ, "TF_CONFIG": json.dumps(task)}).is_local


@pytest.mark.parametrize("environ", ONE, ids=str)
def test_one_that_has_no_others_is_alone(environ: dict[str, str]) -> None:
    assert Cluster.from_environment(environ).is_local


def test_pbs_lists_its_machines_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("a\na\n\n")
    assert Cluster.from_environment({"PBS_NODEFILE": str(file)}).is_local
    file.write_text("a\na\nb\n")
    with pytest.raises(ConfigError, match="^PBS_NODEFILE: means that the job has 2 machines"):
        Cluster.from_environment({"PBS_NODEFILE": str(file)})


def test_sagemaker_names_all_machines() -> None:
    environ = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
    cluster = Cluster.from_environment(environ)
    assert (str(cluster.task), cluster.source) == ("worker/1", "SageMaker")
    assert cluster.addresses == ("algo-1:2222", "algo-2:2222")
    assert Cluster.from_environment({**environ, "TFDIST_WORKERS": ""}).is_local


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"SM_CURRENT_HOST": "algo-3"}, "SM_CURRENT_HOST: 'algo-3' is not in SM_HOSTS"),
        ({"SM_HOSTS": "algo-1,algo-2"}, "SM_HOSTS: 'algo-1,algo-2' is not a list of names in JSON"),
        ({"SM_HOSTS": "[1, 2]"}, "SM_HOSTS: '[1, 2]' is not a list of names in JSON"),
        ({"SM_HOSTS": '["a", "a"]'}, "SM_HOSTS"),
    ],
)
def test_what_sagemaker_does_not_set_so_is_refused(changes: dict[str, str], line: str) -> None:
    environ = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2", **changes}
    with pytest.raises(ConfigError) as caught:
        Cluster.from_environment(environ)
    assert str(caught.value).startswith(line)
