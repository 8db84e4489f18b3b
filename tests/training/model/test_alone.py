"""A model that would train by itself in a cluster is refused, one out of the scope warned of."""

from __future__ import annotations

import json
import logging

import pytest
import tensorflow as tf

import tfdist
from tfdist.errors import ConfigError
from tfdist.runtime.log import LOGGER
from tfdist.strategy import registry
from tfdist.training.model.alone import check_made_for_cluster


@pytest.fixture
def warnings(monkeypatch):
    """What the logger says, as text."""

    class Said(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())

    said: list[str] = []
    monkeypatch.setattr(LOGGER, "handlers", [Said()])
    monkeypatch.setattr(registry, "_newest", None)
    return said


def in_cluster(monkeypatch, **jobs: int) -> None:
    spec = {job: [f"127.0.0.1:{5000 + i}" for i in range(n)] for job, n in jobs.items()}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": spec, "task": task}))


def test_one_process_of_a_cluster_of_several_is_refused(devices, monkeypatch):
    in_cluster(monkeypatch, worker=2)
    for strategy in (tfdist.mirrored_strategy(devices[:2]), tf.distribute.get_strategy()):
        with pytest.raises(ConfigError, match=r"worker/0 of a cluster of 2.*'multi_worker_mirr"):
            check_made_for_cluster(strategy)


def test_a_strategy_of_the_cluster_and_a_cluster_of_one_are_let_pass(monkeypatch, warnings):
    class CollectiveAllReduceStrategy:
        """Known by its name; the real one needs the other processes."""

    in_cluster(monkeypatch, worker=2)
    check_made_for_cluster(CollectiveAllReduceStrategy())
    in_cluster(monkeypatch, worker=1)
    check_made_for_cluster(tf.distribute.get_strategy())
    monkeypatch.delenv("TF_CONFIG")
    check_made_for_cluster(tf.distribute.get_strategy())
    assert warnings == []


def test_a_model_made_outside_of_a_strategy_of_several_replicas_is_warned_of(devices, warnings):
    several = registry.remember_strategy(tfdist.mirrored_strategy(devices[:2]))
    check_made_for_cluster(several)
    assert warnings == []
    check_made_for_cluster(tf.distribute.get_strategy())
    (said,) = warnings
    assert "outside the scope of the MirroredStrategy of 2 replicas" in said
    del several
    one = registry.remember_strategy(tfdist.one_device_strategy(devices[0]))
    check_made_for_cluster(tf.distribute.get_strategy())
    check_made_for_cluster(one)
    assert len(warnings) == 1
