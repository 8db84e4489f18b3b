"""Builders of the `tf.distribute` strategies from a cluster and this machine's devices.

See https://www.tensorflow.org/guide/distributed_training for what each strategy does.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Sequence

import tensorflow as tf

from tfdist import ending, serving
from tfdist.cluster import Cluster
from tfdist.cluster.backstop import backstop
from tfdist.cluster.meeting import meet, wait_seconds
from tfdist.errors import ConfigError
from tfdist.heartbeat import Heart

STRATEGIES = (
    "auto",
    "one_device",
    "mirrored",
    "multi_worker_mirrored",
    "central_storage",
    "parameter_server",
)

# Between 2 and 16 MiB a pack, an all-reduce of ResNet50's gradients takes two thirds of the
# time it takes in one pack: the reduction of one pack overlaps the packing of the next.
BYTES_PER_PACK = 8 << 20

# What TensorFlow may take to connect after all tasks have met, in seconds.
_CONNECT = 60.0


def virtual_devices(count: int) -> list[str]:
    """Splits this machine's CPU into logical devices, to test strategies without GPUs.

    Must come before anything that starts TensorFlow's runtime; asking again for
    what is already there is harmless.

    Args:
        count: How many logical CPU devices there are to be.

    Returns:
        Their names, `["CPU:0", "CPU:1", ...]`.

    Raises:
        ConfigError: `count` is not positive, or the runtime has started with another layout.
    """
    if count < 1:
        raise ConfigError(f"virtual_devices(count): {count} is given; allowed: 1 or more")
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        )
    except RuntimeError:
        have = len(tf.config.list_logical_devices("CPU"))
        if have != count:
            raise ConfigError(
                f"virtual_devices(count): {count} is given, but TensorFlow has started with "
                f"{have}; call virtual_devices before anything else touches TensorFlow"
            ) from None
    return [f"CPU:{i}" for i in range(count)]


def one_device_strategy(device: str | None = None) -> tf.distribute.Strategy:
    """Builds a `OneDeviceStrategy`.

    Args:
        device: The device, such as `"GPU:1"`; the first GPU, or else the CPU, when absent.

    Raises:
        ConfigError: There is no such device.
    """
    found = _devices("one_device", None if device is None else [device])
    return tf.distribute.OneDeviceStrategy(_full_name(found[0]))


def mirrored_strategy(devices: Sequence[str] | None = None) -> tf.distribute.Strategy:
    """Builds a `MirroredStrategy`: one process, a replica on each device.

    Args:
        devices: Their names, such as `["GPU:0", "GPU:1"]`; all GPUs, or else all
            logical CPUs, when absent.

    Raises:
        ConfigError: A device does not exist or is named twice.
    """
    found = _devices("mirrored", devices)
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
        devices: Where the replicas compute; all GPUs, or else all logical CPUs, when absent.
        parameter_device: Where the variables are.

    Raises:
        ConfigError: A device does not exist or is named twice.
    """
    found = _devices("central_storage", devices)
    parameter = _devices("central_storage", [parameter_device])[0]
    return tf.distribute.experimental.CentralStorageStrategy(
        [_full_name(name) for name in found], _full_name(parameter)
    )


def multi_worker_mirrored_strategy(
    cluster: Cluster, *, bytes_per_pack: int = BYTES_PER_PACK
) -> tf.distribute.Strategy:
    """Builds a `MultiWorkerMirroredStrategy`: a process a worker, synchronous steps.

    Args:
        cluster: Chief and workers; an evaluator, which takes no part, is left out.
        bytes_per_pack: How much is sent at once in an all-reduce, in bytes.

    Raises:
        ConfigError: The cluster has ps tasks, or this task is an evaluator.
        PeerError: Another task did not come in time.
    """
    if cluster.has_ps:
        raise ConfigError(
            "strategy multi_worker_mirrored: the cluster has ps tasks, which it cannot use; "
            "take the ps tasks out, or use parameter_server"
        )
    _no_evaluator("multi_worker_mirrored", cluster)
    _grow_gpu_memory()
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bytes_per_pack)
    meet(cluster)
    with backstop(wait_seconds() + _CONNECT, f"{cluster.task}: connecting to the other workers"):
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=_resolver(cluster), communication_options=options
        )
    ending.install(connected=True)
    _end_on_sigterm()
    return strategy


def parameter_server_strategy(cluster: Cluster) -> tf.distribute.Strategy:
    """Builds a `ParameterServerStrategy` in the chief; the other tasks call `serve`.

    Args:
        cluster: One chief, one worker or more, one ps or more.

    Raises:
        ConfigError: The cluster has no ps, no worker or no chief, or this task is not the chief.
        PeerError: Another task did not come in time.
    """
    _require_parameter_servers(cluster)
    if cluster.task.type != "chief":
        raise ConfigError(
            f"strategy parameter_server: this task is {cluster.task}, but only the chief builds "
            "the strategy; call tfdist.serve(cluster) first, and return where it says True"
        )
    _grow_gpu_memory()
    meet(cluster)
    with backstop(wait_seconds() + _CONNECT, f"{cluster.task}: connecting to ps and workers"):
        strategy = tf.distribute.ParameterServerStrategy(_resolver(cluster))
    ending.install(connected=True)
    _end_on_sigterm()
    serving.say_goodbye(cluster)
    return strategy


def choose(cluster: Cluster) -> tuple[str, str]:
    """Says what `auto` stands for here.

    Returns:
        The strategy's name and the reason, a clause.
    """
    if cluster.has_ps:
        return "parameter_server", "the cluster has ps tasks"
    if cluster.num_workers > 1:
        return "multi_worker_mirrored", f"the cluster has {cluster.num_workers} workers"
    found = _devices("auto", None)
    if len(found) > 1:
        return "mirrored", f"one worker, {len(found)} devices ({', '.join(found)})"
    return "one_device", f"one worker, one device ({found[0]})"


def build_strategy(
    name: str = "auto",
    cluster: Cluster | None = None,
    *,
    devices: Sequence[str] | None = None,
) -> tf.distribute.Strategy:
    """Builds a strategy by its name.

    Args:
        name: `auto` or one of one_device, mirrored, multi_worker_mirrored,
            central_storage, parameter_server. `auto` says on the chief's standard
            error what it chose and why.
        cluster: The cluster this process is a task of; read from the environment when absent.
        devices: Names of the devices to use, for the strategies of one process.

    Raises:
        ConfigError: Unknown name, a strategy that cannot run on this cluster, or a
            device that does not exist.
    """
    ending.install()
    Heart().write("building")
    if name not in STRATEGIES:
        raise ConfigError(f"strategy: {name!r} is unknown; allowed: {', '.join(STRATEGIES)}")
    if cluster is None:
        cluster = Cluster.from_environment()
    if name == "auto":
        name, reason = choose(cluster)
        if cluster.is_chief:
            print(f"tfdist: strategy {name}: {reason}", file=sys.stderr, flush=True)
    if name in ("multi_worker_mirrored", "parameter_server"):
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
        if name == "parameter_server":
            return parameter_server_strategy(cluster)
        return multi_worker_mirrored_strategy(cluster)
    if cluster.num_workers > 1 or cluster.has_ps:
        raise ConfigError(
            f"strategy {name}: it runs in one process, but the cluster has "
            f"{len(cluster.tasks)} tasks, which would each train alone; use "
            f"{choose(cluster)[0]}, or start one task"
        )
    if name == "one_device":
        if devices is not None and len(devices) != 1:
            raise ConfigError(f"strategy one_device: devices {list(devices)!r}; allowed: one")
        return one_device_strategy(devices[0] if devices else None)
    if name == "mirrored":
        return mirrored_strategy(devices)
    return central_storage_strategy(devices)


def _devices(strategy: str, wanted: Sequence[str] | None) -> list[str]:
    """The devices to use, as `GPU:0` or `CPU:0`, checked against those there are."""
    _grow_gpu_memory()
    there = [
        f"{device.device_type}:{device.name.rsplit(':', 1)[1]}"
        for kind in ("GPU", "CPU")
        for device in tf.config.list_logical_devices(kind)
    ]
    if wanted is None:
        gpus = [name for name in there if name.startswith("GPU")]
        return gpus or [name for name in there if name.startswith("CPU")]
    if not wanted:
        raise ConfigError(f"strategy {strategy}: no device is given; there are: {there}")
    found = []
    for name in wanted:
        short = name.upper().removeprefix("/").removeprefix("DEVICE:")
        if short not in there:
            raise ConfigError(
                f"strategy {strategy}: device {name!r} does not exist; there are: "
                f"{', '.join(there)}"
            )
        if short in found:
            raise ConfigError(f"strategy {strategy}: device {name!r} is given twice")
        found.append(short)
    return found


def _full_name(device: str) -> str:
    return f"/device:{device}"


def _grow_gpu_memory() -> None:
    """Makes TensorFlow take GPU memory as it needs it, so that tasks can share a GPU."""
    for gpu in tf.config.list_physical_devices("GPU"):
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except (RuntimeError, ValueError):
            return  # The runtime has started: as it was set then.


def _end_on_sigterm() -> None:
    """Has SIGTERM do again what Python thinks it does: TensorFlow has made it do nothing."""
    with contextlib.suppress(ValueError, TypeError):  # Another thread; a handler not of Python's.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def _no_evaluator(strategy: str, cluster: Cluster) -> None:
    if cluster.task.type == "evaluator":
        raise ConfigError(
            f"strategy {strategy}: this task is {cluster.task}, which takes no part in training; "
            "use one_device there"
        )


def _require_parameter_servers(cluster: Cluster) -> None:
    counts = {job: len(addresses) for job, addresses in cluster.jobs.items()}
    for job in ("chief", "ps", "worker"):
        if not counts.get(job):
            raise ConfigError(
                f"strategy parameter_server: the cluster has no {job} task; it needs one chief, "
                "one ps or more and one worker or more"
            )
    _no_evaluator("parameter_server", cluster)


def _resolver(cluster: Cluster) -> tf.distribute.cluster_resolver.ClusterResolver:
    jobs = {job: list(hosts) for job, hosts in cluster.jobs.items() if job != "evaluator"}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs),
        task_type=cluster.task.type,
        task_id=cluster.task.index,
        rpc_layer="grpc",
    )
