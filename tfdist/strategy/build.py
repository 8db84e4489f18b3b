"""Builds the `tf.distribute` strategies from a cluster and this machine's devices.

https://www.tensorflow.org/guide/distributed_training describes each strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.collectives.exit_barrier import add_exit_barrier
from tfdist.collectives.process_group import ProcessGroup
from tfdist.errors import ConfigError
from tfdist.rendezvous.once import meet
from tfdist.runtime import excepthook, sigterm
from tfdist.runtime.heartbeat import HeartbeatWriter
from tfdist.runtime.log import LOGGER
from tfdist.runtime.timeouts import wait_seconds
from tfdist.runtime.watchdog import watchdog
from tfdist.strategy.beats import Beats
from tfdist.strategy.coordinator import coordinator_of
from tfdist.strategy.devices import find_devices, full_name, grow_gpu_memory
from tfdist.strategy.kinds import AUTO, BY_NAME, NAMES, check_parameter_servers, choose
from tfdist.strategy.private_port import close_to_others
from tfdist.strategy.registry import check_same_cluster, connect, remember_strategy
from tfdist.validation import one_of

# Between 2 and 16 MiB a pack, an all-reduce of ResNet50's gradients takes two thirds of the
# time it takes in one pack: the reduction of one pack overlaps the packing of the next.
BYTES_PER_PACK = 8 << 20

# Seconds that TensorFlow may take to connect after all tasks have met.
_CONNECT = 60.0


def one_device_strategy(device: str | None = None) -> tf.distribute.Strategy:
    """Builds a `OneDeviceStrategy`: one process, one replica.

    Args:
        device: The device, such as `"GPU:1"`; None for the first GPU, or else the CPU.

    Raises:
        ConfigError: The device does not exist.

    Example:
        >>> strategy = tfdist.one_device_strategy("CPU:0")
        >>> strategy.num_replicas_in_sync
        1
    """
    found = find_devices("one_device", None if device is None else [device])
    return tf.distribute.OneDeviceStrategy(full_name(found[0]))


def mirrored_strategy(devices: Sequence[str] | None = None) -> tf.distribute.Strategy:
    """Builds a `MirroredStrategy`: one process, a replica on each device.

    Args:
        devices: Their names, such as `["GPU:0", "GPU:1"]`; None for all GPUs, or else
            all logical CPUs.

    Raises:
        ConfigError: A device does not exist or is named twice.

    Example:
        >>> names = tfdist.virtual_devices(4)
        >>> strategy = tfdist.mirrored_strategy(names[:2])
        >>> strategy.num_replicas_in_sync
        2
    """
    found = find_devices("mirrored", devices)
    # On CPUs the default all-reduce takes four times as long as adding on one of them, and
    # adding on one device also fixes the order of the additions.
    on_cpu = all(name.startswith("CPU") for name in found)
    cross_device_ops = tf.distribute.ReductionToOneDevice() if on_cpu else None
    return tf.distribute.MirroredStrategy(found, cross_device_ops=cross_device_ops)


def central_storage_strategy(
    devices: Sequence[str] | None = None, parameter_device: str = "CPU:0"
) -> tf.distribute.Strategy:
    """Builds a `CentralStorageStrategy`: variables on one device, a replica on each of the others.

    Args:
        devices: The devices of the replicas; None for all GPUs, or else all logical CPUs.
        parameter_device: The device of the variables.

    Raises:
        ConfigError: A device does not exist or is named twice.

    Example:
        >>> names = tfdist.virtual_devices(4)
        >>> strategy = tfdist.central_storage_strategy(names[1:], parameter_device="CPU:0")
        >>> strategy.num_replicas_in_sync
        3
    """
    found = find_devices("central_storage", devices)
    parameter = find_devices("central_storage", [parameter_device])[0]
    return tf.distribute.experimental.CentralStorageStrategy(
        [full_name(name) for name in found], full_name(parameter)
    )


def multi_worker_mirrored_strategy(
    cluster: Cluster, *, bytes_per_pack: int = BYTES_PER_PACK
) -> tf.distribute.Strategy:
    """Builds a `MultiWorkerMirroredStrategy`: one process per worker, synchronous steps.

    Args:
        cluster: Chief and workers; an evaluator, which takes no part, is left out.
        bytes_per_pack: The size of the packs that an all-reduce sends, in bytes.

    Raises:
        ConfigError: The cluster has ps tasks, or this task is an evaluator, or this process has
            joined another cluster.
        PeerError: Another task did not come in time.

    Example:
        Every worker runs the same script, such as with `tfdist launch --workers 2`::

            cluster = tfdist.Cluster.from_environment()
            strategy = tfdist.multi_worker_mirrored_strategy(cluster)
            with strategy.scope():
                model = make_model()
                model.compile("adam", "mse")
            tfdist.Trainer(model).fit(dataset, epochs=3)
    """
    if cluster.has_ps:
        raise ConfigError(
            "strategy multi_worker_mirrored: the cluster has ps tasks, which it cannot use; "
            "take the ps tasks out, or use parameter_server"
        )
    _no_evaluator("multi_worker_mirrored", cluster)
    check_same_cluster(cluster)
    grow_gpu_memory()
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bytes_per_pack)
    meet(cluster)
    with watchdog(wait_seconds() + _CONNECT, f"{cluster.task}: connecting to the other workers"):
        strategy = connect(cluster, _resolver(cluster), options)
    close_to_others(cluster)
    excepthook.install(connected=True)
    sigterm.end_on_it()
    group = ProcessGroup(strategy)
    add_exit_barrier(group)
    group.agree_on_seed()
    return strategy


def parameter_server_strategy(cluster: Cluster) -> tf.distribute.Strategy:
    """Builds a `ParameterServerStrategy` in the chief; the other tasks call `serve`.

    Args:
        cluster: One chief, one worker or more, one ps or more.

    Raises:
        ConfigError: The cluster has no ps, no worker or no chief, or this task is not the chief.
        PeerError: Another task did not come in time.

    Example:
        Every task runs the same script, such as with
        `tfdist launch --chief 1 --ps 1 --workers 2`::

            cluster = tfdist.Cluster.from_environment()
            if tfdist.serve(cluster):  # A ps or a worker: it has served.
                raise SystemExit
            strategy = tfdist.parameter_server_strategy(cluster)
            with strategy.scope():
                model = make_model()
                model.compile("adam", "mse")
            tfdist.Trainer(model).fit(dataset, epochs=3)
    """
    check_parameter_servers(cluster)
    _no_evaluator("parameter_server", cluster)
    if cluster.task.type != "chief":
        raise ConfigError(
            f"strategy parameter_server: this task is {cluster.task}, but only the chief builds "
            "the strategy; call tfdist.serve(cluster) first, and return where it returns True"
        )
    grow_gpu_memory()
    meet(cluster)
    with watchdog(wait_seconds() + _CONNECT, f"{cluster.task}: connecting to ps and workers"):
        strategy = tf.distribute.ParameterServerStrategy(_resolver(cluster))
        coordinator_of(strategy)
    close_to_others(cluster)
    excepthook.install(connected=True)
    sigterm.end_on_it()
    Beats(cluster)
    return strategy


def build_strategy(
    name: str = "auto",
    cluster: Cluster | None = None,
    *,
    devices: Sequence[str] | None = None,
) -> tf.distribute.Strategy:
    """Builds a strategy by its name.

    Args:
        name: `auto` or one of one_device, mirrored, multi_worker_mirrored,
            central_storage, parameter_server. `auto` prints its choice and the
            reason on the chief's standard error.
        cluster: The cluster of this task; None to read it from the environment.
        devices: Names of the devices to use, for the strategies of one process.

    Raises:
        ConfigError: The name is unknown, the strategy cannot run on this cluster, or a
            device does not exist.
        PeerError: Another task did not come in time.

    Example:
        >>> strategy = tfdist.build_strategy("mirrored", devices=["CPU:0", "CPU:1"])
        >>> strategy.num_replicas_in_sync
        2
        >>> strategy = tfdist.build_strategy()  # auto: here, a replica on each of four CPUs
        >>> strategy.num_replicas_in_sync
        4
    """
    excepthook.install()
    sigterm.end_process_one()
    HeartbeatWriter().write("building")
    one_of("strategy", name, NAMES)
    if cluster is None:
        cluster = Cluster.from_environment()
    if name == AUTO:
        name, reason = choose(cluster, find_devices(AUTO, None) if _is_alone(cluster) else None)
        if cluster.is_chief:
            LOGGER.info("strategy %s: %s", name, reason)
    if BY_NAME[name].needs_cluster:
        _check_processes(name, cluster, devices)
        return remember_strategy(_OF_CLUSTERS[name](cluster))
    if not _is_alone(cluster):
        raise ConfigError(
            f"strategy {name}: it runs in one process, but the cluster has "
            f"{len(cluster.tasks)} tasks, which would each train alone; use "
            f"{choose(cluster)[0]}, or start one task"
        )
    return remember_strategy(_OF_ONE_PROCESS[name](devices))


def _one_device(devices: Sequence[str] | None) -> tf.distribute.Strategy:
    if devices is not None and len(devices) != 1:
        raise ConfigError(f"strategy one_device: devices {list(devices)!r}; allowed: one")
    return one_device_strategy(devices[0] if devices else None)


_OF_CLUSTERS: dict[str, Callable[[Cluster], tf.distribute.Strategy]] = {
    "multi_worker_mirrored": multi_worker_mirrored_strategy,
    "parameter_server": parameter_server_strategy,
}
_OF_ONE_PROCESS: dict[str, Callable[[Sequence[str] | None], tf.distribute.Strategy]] = {
    "one_device": _one_device,
    "mirrored": mirrored_strategy,
    "central_storage": central_storage_strategy,
}


def _is_alone(cluster: Cluster) -> bool:
    """Returns whether this task trains by itself."""
    return not BY_NAME.get(choose(cluster)[0], BY_NAME["one_device"]).needs_cluster


def _check_processes(name: str, cluster: Cluster, devices: Sequence[str] | None) -> None:
    if devices is not None:
        raise ConfigError(
            f"strategy {name}: devices {list(devices)!r} are given, but each process uses "
            "all it sees; limit them with CUDA_VISIBLE_DEVICES"
        )
    if cluster.is_local:
        raise ConfigError(
            f"strategy {name}: no cluster is given; set TF_CONFIG, start the command with "
            "'tfdist launch', or use one_device or mirrored"
        )


def _no_evaluator(strategy: str, cluster: Cluster) -> None:
    if cluster.task.type == "evaluator":
        raise ConfigError(
            f"strategy {strategy}: this task is {cluster.task}, which takes no part in training; "
            "use one_device there"
        )


def _resolver(cluster: Cluster) -> tf.distribute.cluster_resolver.ClusterResolver:
    jobs = {job: list(hosts) for job, hosts in cluster.jobs.items() if job != "evaluator"}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs),
        task_type=cluster.task.type,
        task_id=cluster.task.index,
        rpc_layer="grpc",
    )
