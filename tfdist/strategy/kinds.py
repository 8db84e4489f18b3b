"""The table of strategies, their names and needs, and the choice of `auto`. No TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError

AUTO = "auto"


@dataclass(frozen=True)
class Kind:
    """The properties of a strategy that users, builders and loops need.

    Attributes:
        name: Its name in tfdist.
        public: TensorFlow's public name of its class.
        classes: TensorFlow's internal names of its classes.
        needs_cluster: Whether it runs in several processes, which a cluster describes.
        is_synchronous: Whether its replicas step together; else each worker steps on its own.
    """

    name: str
    public: str
    classes: tuple[str, ...]
    needs_cluster: bool = False
    is_synchronous: bool = True


KINDS = (
    Kind("one_device", "OneDeviceStrategy", ("OneDeviceStrategy",)),
    Kind("mirrored", "MirroredStrategy", ("MirroredStrategy",)),
    Kind(
        "multi_worker_mirrored",
        "MultiWorkerMirroredStrategy",
        ("CollectiveAllReduceStrategy",),
        needs_cluster=True,
    ),
    Kind("central_storage", "CentralStorageStrategy", ("CentralStorageStrategy",)),
    Kind(
        "parameter_server",
        "ParameterServerStrategy",
        ("ParameterServerStrategyV2",),
        needs_cluster=True,
        is_synchronous=False,
    ),
)
BY_NAME = {kind.name: kind for kind in KINDS}
NAMES = (AUTO, *BY_NAME)

# TensorFlow's default strategy, where none is built: one replica, on any device.
_DEFAULT = Kind("default", "the default strategy", ())


def kind_of(strategy: Any) -> Kind:
    """Returns the kind of a `tf.distribute.Strategy`, made by tfdist or by hand."""
    by_class = {name: kind for kind in KINDS for name in kind.classes}
    names = [base.__name__ for base in type(strategy).__mro__]  # Its own class comes first.
    return next((by_class[name] for name in names if name in by_class), _DEFAULT)


def public_name(strategy: Any) -> str:
    """Returns the name of the strategy's class in TensorFlow's documentation."""
    kind = kind_of(strategy)
    return type(strategy).__name__ if kind is _DEFAULT else kind.public


def check_parameter_servers(cluster: Cluster) -> None:
    """Checks that the cluster has the tasks that parameter_server needs.

    Raises:
        ConfigError: It has no chief, no ps or no worker.
    """
    for job in ("chief", "ps", "worker"):
        if not cluster.jobs.get(job):
            raise ConfigError(
                f"strategy parameter_server: the cluster has no {job} task; it needs one chief, "
                "one ps or more and one worker or more"
            )


def choose(cluster: Cluster, devices: Sequence[str] | None = None) -> tuple[str, str]:
    """Returns the strategy that `auto` selects.

    Args:
        cluster: The cluster of this task.
        devices: The devices of this machine, where they are known.

    Returns:
        The strategy's name and the reason, a clause. Where the devices decide and are not known,
        the name is a phrase that explains that.
    """
    alone = _why_alone(cluster)
    if not alone and cluster.has_ps:
        return "parameter_server", "the cluster has ps tasks"
    if not alone:
        return "multi_worker_mirrored", f"the cluster has {cluster.num_workers} workers and no ps"
    if devices is None:
        return "one_device, or mirrored when this machine has several GPUs", alone
    if len(devices) > 1:
        return "mirrored", f"one worker, {len(devices)} devices ({', '.join(devices)})"
    return "one_device", f"one worker, one device ({devices[0]})"


def _why_alone(cluster: Cluster) -> str:
    """Returns the reason why this task trains by itself; "" where it does not."""
    if cluster.is_local:
        return "one local task"
    if cluster.task.type == "evaluator":
        return "an evaluator is alone"
    if cluster.has_ps or cluster.num_workers > 1:
        return ""
    return "one worker and no ps"
