"""Describes how Kubernetes is to run a job's pods; reads that from a values file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tfdist.cluster.documents import load_documents
from tfdist.cluster.secret import VARIABLE as SECRET_VARIABLE
from tfdist.cluster.spec import ROLES
from tfdist.render import checks
from tfdist.validation import reject

GANG_SCHEDULERS = {"volcano": "volcano", "coscheduling": "scheduler-plugins-scheduler"}

# What tells a task its place in the cluster.
_RESERVED = (
    *("TF_CONFIG", "TFDIST_CHIEF", "TFDIST_WORKERS", "TFDIST_PS", "TFDIST_EVALUATOR"),
    *("TFDIST_TASK_TYPE", "TFDIST_TASK_INDEX", SECRET_VARIABLE),
    *("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a task of one role is given, where it differs from the job's.

    Attributes:
        cpus: CPUs.
        memory: Memory.
        gpus: GPUs.
    """

    cpus: str | None = None
    memory: str | None = None
    gpus: int | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How Kubernetes is to run a job's pods.

    Attributes:
        labels: Labels of all that is rendered, and of the pods.
        annotations: Annotations of the job and its pods.
        queue: The queue of Kueue that admits the job.
        gang: The scheduler that starts all pods or none: volcano or coscheduling.
        deadline: Seconds after which the job fails.
        ttl: Seconds after which a job that has ended is deleted.
        runtime: The ClusterTrainingRuntime that a TrainJob runs in.
        env: Variables: text, or where Kubernetes finds it (`valueFrom`).
        env_from: Secrets and ConfigMaps whose keys become variables (`envFrom`).
        volumes: Kind, name, mount point, and whether it is only read.
        sizes: The CPUs, memory and GPUs of single roles.
        gpu_resource: The resource that a GPU counts as; nvidia.com/gpu if None.
        shared_memory: The size of /dev/shm; 64 MB if None, or 1Gi where a pod has several GPUs.
        node_selector: The labels of nodes to run on.
        tolerations: The taints of nodes to run on all the same.
        affinity: Where to run, in Kubernetes' words.
        priority_class: The pods' priority class.
        service_account: The pods' service account.
        pull_secrets: The Secrets with which images are pulled.
        pod_security: Changes to the pods' securityContext; null takes a field out.
        container_security: Changes to the containers' securityContext.
        patches: Changes to every pod, by file: each an object with `metadata` and `spec`.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    queue: str | None = None
    gang: str | None = None
    deadline: int | None = None
    ttl: int | None = None
    runtime: str | None = None
    env: Mapping[str, Any] = field(default_factory=dict)
    env_from: Sequence[Mapping[str, Any]] = ()
    volumes: Sequence[tuple[str, str, str, bool]] = ()
    sizes: Mapping[str, Size] = field(default_factory=dict)
    gpu_resource: str | None = None
    shared_memory: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)
    priority_class: str | None = None
    service_account: str | None = None
    pull_secrets: Sequence[str] = ()
    pod_security: Mapping[str, Any] = field(default_factory=dict)
    container_security: Mapping[str, Any] = field(default_factory=dict)
    patches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: Callable[[str], str]) -> Settings:
        """Checks values, under the names they have in a values file.

        Args:
            values: Such as `{"queue": "team", "nodeSelector": {"disk": "ssd"}}`; null is absent.
            where: The place of a key, for messages.

        Raises:
            ConfigError: A key is unknown, or its value malformed.

        Example:
            >>> Settings.parse({"queue": "team"}, "values: {}".format).queue
            'team'
        """
        found = {}
        for name, value in values.items():
            if name not in _VALUES:
                reject(where(str(name)), f"is not a key here; allowed: {', '.join(_VALUES)}")
            attribute, check = _VALUES[name]
            if value is not None:
                found[attribute] = check(where(name), value)
        return cls(**found)

    @classmethod
    def from_file(cls, path: str) -> Settings:
        """Reads a values file.

        Raises:
            ConfigError: It cannot be read, or is not a file of values.
        """
        return cls.parse(
            _one_document(path, "give a file of values"), lambda name: f"{path}: {name}"
        )

    def with_patch(self, path: str) -> Settings:
        """Adds the patch in a file.

        Raises:
            ConfigError: It cannot be read, or is not a part of a pod.
        """
        patch = _one_document(path, "give metadata and spec of a pod")
        _PATCH(path, patch)
        for part, value in patch.items():
            checks.mapping(f"{path}: {part}", value)
        return replace(self, patches={**self.patches, path: patch})

    def overridden(self, other: Settings) -> Settings:
        """Returns both together: of single values the other's, of lists and objects the union."""
        empty = Settings()
        changes: dict[str, Any] = {}
        for one in fields(self):
            mine, its = getattr(self, one.name), getattr(other, one.name)
            if its == getattr(empty, one.name):
                continue
            if isinstance(its, Mapping):
                its = {**mine, **its}
            elif isinstance(its, (list, tuple)):
                its = [*mine, *its]
            changes[one.name] = its
        return replace(self, **changes)


def _one_document(path: str, wanted: str) -> Mapping[str, Any]:
    documents = [document for document in load_documents(path, wanted) if document is not None]
    if len(documents) > 1:
        reject(path, f"has {len(documents)} documents; {wanted}")
    found = documents[0] if documents else {}
    checks.plain(path, found)
    return checks.mapping(path, found)


_PATCH = checks.members(dict.fromkeys(("metadata", "spec"), checks.anything))
_SIZE = checks.members(
    {"cpus": checks.quantity, "memory": checks.quantity, "gpus": checks.at_least(0)}
)


def _size(where: str, value: Any) -> Size:
    return Size(**_SIZE(where, value))


# What a values file may hold: Kubernetes' names, where it has one.
_VALUES: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "labels": ("labels", checks.labels),
    "annotations": ("annotations", checks.texts),
    "queue": ("queue", checks.label),
    "gang": ("gang", checks.choice(*GANG_SCHEDULERS)),
    "activeDeadlineSeconds": ("deadline", checks.at_least(1)),
    "ttlSecondsAfterFinished": ("ttl", checks.at_least(0)),
    "runtime": ("runtime", checks.name),
    "env": ("env", checks.env(_RESERVED)),
    "envFrom": ("env_from", checks.each(checks.env_source)),
    "volumes": ("volumes", checks.each(checks.volume)),
    "roles": (
        "sizes",
        checks.members({role: _size for role in ROLES if role != "evaluator"}),
    ),
    "gpuResource": ("gpu_resource", checks.resource),
    "sharedMemory": ("shared_memory", checks.quantity),
    "nodeSelector": ("node_selector", checks.labels),
    "tolerations": ("tolerations", checks.each(checks.toleration)),
    "affinity": ("affinity", checks.affinity),
    "priorityClassName": ("priority_class", checks.name),
    "serviceAccountName": ("service_account", checks.name),
    "imagePullSecrets": ("pull_secrets", checks.each(checks.name)),
    "podSecurityContext": ("pod_security", checks.mapping),
    "securityContext": ("container_security", checks.mapping),
}
