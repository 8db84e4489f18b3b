"""The builders: what they build, and what they refuse in one line."""

from __future__ import annotations

import pytest

import tfdist
from tfdist.errors import ConfigError

TWO_WORKERS = {"worker": ["127.0.0.1:1111", "127.0.0.1:1112"]}
WITH_PS = TWO_WORKERS | {"chief": ["127.0.0.1:1113"], "ps": ["127.0.0.1:1114"]}


def cluster(jobs: dict[str, list[str]], task: str = "worker", index: int = 0) -> tfdist.Cluster:
    return tfdist.Cluster.from_cluster_spec(jobs, task, index)


@pytest.mark.parametrize(
    ("name", "replicas"), [("one_device", 1), ("mirrored", 4), ("central_storage", 4)]
)
def test_local_strategies_use_all_devices(devices, name, replicas):
    strategy = tfdist.build_strategy(name)
    assert strategy.num_replicas_in_sync == replicas


def test_each_kind_has_a_builder_of_its_sort():
    from tfdist.strategy import build
    from tfdist.strategy.kinds import KINDS

    for needs_cluster, builders in ((True, build._OF_CLUSTERS), (False, build._OF_ONE_PROCESS)):
        assert set(builders) == {k.name for k in KINDS if k.needs_cluster == needs_cluster}


def test_a_class_of_its_own_is_a_kind_of_its_own(monkeypatch):
    import tensorflow as tf

    from tfdist.strategy import kinds

    class Own(tf.distribute.OneDeviceStrategy):
        pass

    assert kinds.kind_of(Own("CPU:0")).name == "one_device"
    own = kinds.Kind("own", "Own", ("Own",))
    monkeypatch.setattr(kinds, "KINDS", (*kinds.KINDS, own))
    assert kinds.kind_of(Own("CPU:0")) is own


def test_devices_can_be_named(devices):
    strategy = tfdist.build_strategy("mirrored", devices=["CPU:1", "/device:cpu:3"])
    assert [name[-5:] for name in strategy.extended.worker_devices] == ["CPU:1", "CPU:3"]
    strategy = tfdist.one_device_strategy("CPU:2")
    assert strategy.extended.worker_devices[0].endswith("CPU:2")


def test_central_storage_keeps_the_variables_on_one_device(devices):
    import tensorflow as tf

    strategy = tfdist.central_storage_strategy(["CPU:2", "CPU:3"], "CPU:1")
    with strategy.scope():
        variable = tf.Variable(1.0)
    assert variable.device.endswith("CPU:1")


def test_auto_says_what_it_chose_and_why(devices, capsys):
    strategy = tfdist.build_strategy("auto")
    assert strategy.num_replicas_in_sync == 4
    said = capsys.readouterr().err
    assert "strategy mirrored: one worker, 4 devices (CPU:0, CPU:1, CPU:2, CPU:3)" in said


@pytest.mark.parametrize(
    ("jobs", "task", "chosen"),
    [
        (None, None, "mirrored"),
        ({"worker": ["127.0.0.1:1111"]}, "worker", "mirrored"),
        (TWO_WORKERS, "worker", "multi_worker_mirrored"),
        (WITH_PS, "chief", "parameter_server"),
    ],
)
def test_auto_goes_by_the_cluster(devices, jobs, task, chosen):
    from tfdist.strategy.kinds import choose

    where = tfdist.Cluster.local() if jobs is None else cluster(jobs, task)
    assert choose(where, devices)[0] == chosen


@pytest.mark.parametrize(
    ("name", "jobs", "task", "says"),
    [
        ("tpu", None, "worker", "strategy: 'tpu' is given; allowed: auto, one_device"),
        ("multi_worker_mirrored", None, "worker", "no cluster is given"),
        ("parameter_server", None, "worker", "no cluster is given"),
        ("multi_worker_mirrored", WITH_PS, "chief", "the cluster has ps tasks"),
        ("parameter_server", TWO_WORKERS, "worker", "the cluster has no chief task"),
        (
            "parameter_server",
            {"chief": ["127.0.0.1:1113"], **TWO_WORKERS},
            "chief",
            "the cluster has no ps task",
        ),
        ("parameter_server", WITH_PS, "ps", "only the chief builds the strategy"),
        ("mirrored", TWO_WORKERS, "worker", "use multi_worker_mirrored"),
        ("one_device", WITH_PS, "chief", "use parameter_server"),
    ],
)
def test_what_does_not_go_with_the_cluster_is_refused(devices, name, jobs, task, says):
    with pytest.raises(ConfigError) as error:
        tfdist.build_strategy(name, None if jobs is None else cluster(jobs, task))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("mirrored", ["GPU:0"], "device 'GPU:0' does not exist; there are: CPU:0"),
        ("mirrored", ["CPU:0", "cpu:0"], "given twice"),
        ("mirrored", [], "no device is given"),
        ("one_device", ["CPU:0", "CPU:1"], "allowed: one"),
    ],
)
def test_wrong_devices_are_refused(devices, name, given, says):
    with pytest.raises(ConfigError, match="strategy " + name) as error:
        tfdist.build_strategy(name, devices=given)
    assert says in str(error.value)


def test_the_cluster_is_read_from_the_environment(devices, monkeypatch):
    config = cluster(TWO_WORKERS).to_tf_config()
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ConfigError, match="would each train alone"):
        tfdist.build_strategy("mirrored")


def test_an_evaluator_takes_no_part(devices):
    jobs = TWO_WORKERS | {"evaluator": ["127.0.0.1:1115"]}
    with pytest.raises(ConfigError, match="takes no part in training"):
        tfdist.build_strategy("multi_worker_mirrored", cluster(jobs, "evaluator"))


def test_virtual_devices_can_be_asked_for_again_but_not_changed(devices):
    assert tfdist.virtual_devices(4) == devices
    with pytest.raises(ConfigError, match="TensorFlow has started with 4"):
        tfdist.virtual_devices(2)
    with pytest.raises(ConfigError, match="allowed: a whole number of 1 or more"):
        tfdist.virtual_devices(0)


def test_only_ps_tasks_and_their_workers_serve():
    assert tfdist.serve(tfdist.Cluster.local()) is False
    assert tfdist.serve(cluster(TWO_WORKERS)) is False
    assert tfdist.serve(cluster(WITH_PS, "chief")) is False
