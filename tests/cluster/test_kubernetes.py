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


def test_an_index_alone_is_a_local_task() -> None:
    assert Cluster.from_environment({"JOB_COMPLETION_INDEX": "1"}).is_local


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
