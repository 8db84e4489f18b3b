"""The same job as a TFJob or a JobSet for Kubernetes.

With parameter servers there is a chief, which coordinates, and workers are
replaced one at a time. Without, all tasks are workers and start again
together. Both kinds act on tfdist's exit codes: 1 and 2 end the job, 128 and
above (a peer was lost, the pod was told to stop) start it again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.errors import EXIT_CONFIG, EXIT_USER_ERROR, ConfigError

PORT = 2222
# TFJob gives TF_CONFIG to the container of this name only.
CONTAINER = "tensorflow"
MAX_RESTARTS = 10
# Time to save after SIGTERM.
GRACE_SECONDS = 120
# A missing program (126, 127) is for good too.
_FOR_GOOD = (EXIT_USER_ERROR, EXIT_CONFIG, 126, 127)

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?")
# A pod's name is the job's, the role and two indices, in 63 characters.
_LONGEST_NAME = 40

Manifest = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What runs on a cluster: how many tasks, of what size, and which command.

    Attributes:
        name: The job's name.
        image: The container image, with tfdist in it.
        command: What each task runs.
        workers: Worker tasks.
        ps: Parameter servers; where there are any, there is a chief too.
        namespace: The namespace, the client's default if None.
        gpus_per_worker: GPUs of each worker; the other tasks have none.
        cpus: CPUs of each task.
        memory: Memory of each task.
        volume: A claim and where it is mounted, as `CLAIM:/PATH`.

    Raises:
        ConfigError: A field is out of range.
    """

    name: str
    image: str
    command: Sequence[str]
    workers: int
    ps: int = 0
    namespace: str | None = None
    gpus_per_worker: int = 0
    cpus: str = "4"
    memory: str = "8Gi"
    volume: str | None = None

    def __post_init__(self) -> None:
        if not _LABEL.fullmatch(self.name) or len(self.name) > _LONGEST_NAME:
            raise ConfigError(
                f"render(--name): {self.name!r} is not a name of lower-case letters, digits and "
                f"dashes, at most {_LONGEST_NAME}"
            )
        if self.namespace is not None and not _LABEL.fullmatch(self.namespace):
            raise ConfigError(f"render(--namespace): {self.namespace!r} is not a namespace")
        if not self.image or self.image.split() != [self.image]:
            raise ConfigError(f"render(--image): {self.image!r} is not the name of an image")
        if not self.command:
            raise ConfigError("render: no command given; add '-- COMMAND'")
        if self.workers < 1:
            raise ConfigError(f"render(--workers): {self.workers} is below 1")
        for option, quantity in (("cpus", self.cpus), ("memory", self.memory)):
            if not _QUANTITY.fullmatch(quantity):
                raise ConfigError(
                    f"render(--{option}): {quantity!r} is not a quantity such as 4, 500m or 8Gi"
                )
        if self.volume is not None:
            claim, _, path = self.volume.partition(":")
            if not _LABEL.fullmatch(claim) or not path.startswith("/"):
                raise ConfigError(f"render(--volume): {self.volume!r} is not like CLAIM:/PATH")

    @property
    def tasks(self) -> dict[str, int]:
        """How many tasks each role has, in the order they are started."""
        return (
            {"chief": 1, "ps": self.ps, "worker": self.workers}
            if self.ps
            else {"worker": self.workers}
        )


def tfjob(workload: Workload) -> Manifest:
    """A TFJob, kubeflow.org/v1. The operator writes TF_CONFIG into each pod."""
    spec: Manifest = {"runPolicy": {"cleanPodPolicy": "Running"}}
    if not workload.ps:
        # Otherwise the job is done, and its pods are ended, once worker 0 is.
        spec["successPolicy"] = "AllWorkers"
    kinds = {"chief": "Chief", "ps": "PS", "worker": "Worker"}
    spec["tfReplicaSpecs"] = {
        kinds[role]: {
            "replicas": count,
            # Retries exit codes of 128 and above.
            "restartPolicy": "ExitCode",
            "template": {"spec": _pod(workload, role, port_name="tfjob-port", env={})},
        }
        for role, count in workload.tasks.items()
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": _metadata(workload),
        "spec": spec,
    }


def jobset(workload: Workload) -> Manifest:
    """A JobSet, jobset.x-k8s.io/v1alpha2, with one indexed Job for each role.

    Each pod has its index in JOB_COMPLETION_INDEX, from Kubernetes, and the
    addresses of all tasks in TFDIST_WORKERS, TFDIST_PS and TFDIST_CHIEF, from
    which `tfdist.Cluster.from_environment` makes the cluster.
    """
    spec: Manifest = {
        "network": {
            "enableDNSHostnames": True,
            "subdomain": workload.name,
            # Tasks look for each other before they are ready.
            "publishNotReadyAddresses": True,
        },
        "failurePolicy": {
            "maxRestarts": MAX_RESTARTS,
            "rules": [
                {
                    "name": "failed-for-good",
                    "action": "FailJobSet",
                    "onJobFailureReasons": ["PodFailurePolicy"],
                }
            ],
        },
    }
    if workload.ps:
        spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": ["chief"]}
    spec["replicatedJobs"] = [
        {
            "name": role,
            "replicas": 1,
            "template": {"spec": _indexed_job(workload, role, count)},
        }
        for role, count in workload.tasks.items()
    ]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(workload),
        "spec": spec,
    }


def _indexed_job(workload: Workload, role: str, count: int) -> Manifest:
    # The chief replaces a lost worker's work by itself. Any other loss
    # fails the Job, and the JobSet starts all of them again.
    alone = bool(workload.ps) and role == "worker"
    pod = _pod(workload, role, port_name="tf", env=_addresses(workload, role))
    return {
        "parallelism": count,
        "completions": count,
        "completionMode": "Indexed",
        "backoffLimit": MAX_RESTARTS if alone else 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": CONTAINER,
                        "operator": "In",
                        "values": list(_FOR_GOOD),
                    },
                }
            ]
        },
        # A Job with a podFailurePolicy replaces its pods, never the container.
        "template": {"spec": {"restartPolicy": "Never", **pod}},
    }


def _addresses(workload: Workload, role: str) -> dict[str, str]:
    variables = {"chief": "TFDIST_CHIEF", "ps": "TFDIST_PS", "worker": "TFDIST_WORKERS"}
    env = {}
    for name, count in workload.tasks.items():
        pods = f"[0-{count - 1}]" if count > 1 else "0"
        env[variables[name]] = f"{workload.name}-{name}-0-{pods}.{workload.name}:{PORT}"
    return env | {"TFDIST_TASK_TYPE": role}


def _metadata(workload: Workload) -> Manifest:
    namespace = {"namespace": workload.namespace} if workload.namespace else {}
    return {"name": workload.name, **namespace}


def _pod(workload: Workload, role: str, *, port_name: str, env: dict[str, str]) -> Manifest:
    # As much asked for as allowed, so that the scheduler gives whole CPUs.
    resources: Manifest = {"cpu": workload.cpus, "memory": workload.memory}
    gpus = workload.gpus_per_worker if role == "worker" else 0
    if gpus:
        resources["nvidia.com/gpu"] = gpus
    container: Manifest = {
        "name": CONTAINER,
        "image": workload.image,
        "command": list(workload.command),
        "ports": [{"name": port_name, "containerPort": PORT}],
    }
    if env:
        container["env"] = [{"name": name, "value": value} for name, value in env.items()]
    container["resources"] = {"requests": dict(resources), "limits": dict(resources)}
    mounts, volumes = [], []
    if workload.volume:
        claim, _, path = workload.volume.partition(":")
        mounts.append({"name": "runs", "mountPath": path})
        volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": claim}})
    if gpus > 1:
        # NCCL moves data between the GPUs of a pod through it; 64 MB is too little.
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    if mounts:
        container["volumeMounts"] = mounts
    pod: Manifest = {"terminationGracePeriodSeconds": GRACE_SECONDS, "containers": [container]}
    if volumes:
        pod["volumes"] = volumes
    return pod
