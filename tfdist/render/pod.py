"""Makes what a job's documents share: metadata, and pods that Pod Security "restricted" admits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.cluster.secret import VARIABLE as SECRET_VARIABLE
from tfdist.render.merge_patch import merged
from tfdist.render.settings import GANG_SCHEDULERS, Settings
from tfdist.render.workload import GRACE_SECONDS, Workload
from tfdist.runtime.heartbeat import VARIABLE as HEARTBEAT_VARIABLE
from tfdist.validation import quote, reject

Manifest = dict[str, Any]

# TFJob gives TF_CONFIG to the container of this name only. Patches name it, too.
CONTAINER = "tensorflow"
SECRET_KEY = "secret"

# Every container has a /dev/shm in which it may write, whoever it runs as.
_SHARED_MEMORY = "/dev/shm"
_HEARTBEAT = f"{_SHARED_MEMORY}/tfdist-heartbeat"
_PROBE_SECONDS = 60
_GPU = "nvidia.com/gpu"
# On the job only: Kueue would admit labelled pods one by one.
_QUEUE = "kueue.x-k8s.io/queue-name"
# For NCCL, which takes some 10 MB a GPU and channel.
_SHARED_MEMORY_SIZE = "1Gi"
# A proxy next to the task would outlive it, so that the pod would never end.
_NO_SIDECAR = {"sidecar.istio.io/inject": "false"}
# Variables that pods have of the controllers of their jobs.
_FROM_CONTROLLERS = (
    *("JOB_COMPLETION_INDEX", "TF_CONFIG"),
    *("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
)
_SOURCES = {
    "claim": lambda name: {"persistentVolumeClaim": {"claimName": name}},
    "secret": lambda name: {"secret": {"secretName": name}},
    "configmap": lambda name: {"configMap": {"name": name}},
}
_POD_SECURITY = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_CONTAINER_SECURITY = {
    "privileged": False,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


def metadata(
    workload: Workload, settings: Settings, *, name: str | None = None, queued: bool = False
) -> dict[str, Any]:
    """Returns a document's metadata.

    Args:
        workload: The job.
        settings: The labels and the annotations.
        name: The document's name; the job's by default.
        queued: Whether the document is what Kueue admits.
    """
    labels = dict(settings.labels)
    if queued and settings.queue:
        labels[_QUEUE] = settings.queue
    found: dict[str, Any] = {"name": name or workload.name}
    if workload.namespace:
        found["namespace"] = workload.namespace
    if labels:
        found["labels"] = labels
    if queued and settings.annotations:
        found["annotations"] = dict(settings.annotations)
    return found


def template(
    workload: Workload,
    settings: Settings,
    role: str,
    *,
    port: tuple[str, int],
    env: Mapping[str, str],
    base: Mapping[str, Any] | None = None,
) -> Manifest:
    """Returns the template of the pods of a role: `metadata` and `spec`, patched.

    Args:
        workload: The job.
        settings: How its pods are run.
        role: chief, ps or worker.
        port: The name and the number of the task's port.
        env: What tells the task its place in the cluster.
        base: What else the pod's spec has.

    Raises:
        ConfigError: Two volumes have one mount point, or a patch does not fit.
    """
    labels = {"labels": dict(settings.labels)} if settings.labels else {}
    pod: Manifest = {
        "metadata": {**labels, "annotations": {**_NO_SIDECAR, **settings.annotations}},
        "spec": {**(base or {}), **_pod(workload, settings, role, port, env)},
    }
    for path, patch in settings.patches.items():
        for part, value in patch.items():
            pod[part] = merged(pod[part], value, f"{path}: {part}")
        _check_patched(pod["spec"], base or {}, f"{path}: spec")
    return pod


def _check_patched(spec: Manifest, base: Mapping[str, Any], where: str) -> None:
    containers = _named(f"{where}.containers", spec.get("containers"))
    for container in containers:
        _named(f"{where}.containers.{container['name']}.env", container.get("env"))
    if all(one["name"] != CONTAINER for one in containers):
        reject(f"{where}.containers", f"removes {CONTAINER}, which runs the task; keep it")
    for name, value in base.items():
        if spec.get(name) != value:
            reject(f"{where}.{name}", f"changes {quote(value)}, which the job needs; leave it out")


def _named(where: str, items: Any) -> list[Mapping[str, Any]]:
    if items is None:
        return []
    if not isinstance(items, list) or not all(
        isinstance(one, Mapping) and isinstance(one.get("name"), str) for one in items
    ):
        reject(where, f"{quote(items)} is not a list of things with names; give each its name")
    return items


def secret_name(workload: Workload) -> str:
    """Returns the name of the Secret that the tasks of a job share."""
    return workload.secret or f"{workload.name}-tfdist"


def _pod(
    workload: Workload,
    settings: Settings,
    role: str,
    port: tuple[str, int],
    env: Mapping[str, str],
) -> Manifest:
    spec: Manifest = {
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": merged(_POD_SECURITY, settings.pod_security, "podSecurityContext"),
    }
    if settings.gang:
        spec["schedulerName"] = GANG_SCHEDULERS[settings.gang]
    optional = {
        "priorityClassName": settings.priority_class,
        "serviceAccountName": settings.service_account,
        "imagePullSecrets": [{"name": name} for name in settings.pull_secrets],
        "nodeSelector": dict(settings.node_selector),
        "tolerations": [dict(one) for one in settings.tolerations],
        "affinity": dict(settings.affinity),
    }
    spec |= {name: value for name, value in optional.items() if value}
    gpus = _gpus(workload, settings, role)
    mounts, volumes = _volumes(settings, gpus)
    variables = _env(workload, settings, env)
    _check_expanded(workload, settings, [one["name"] for one in variables])
    container: Manifest = {
        "name": CONTAINER,
        "image": workload.image,
        "command": workload.words,
        "ports": [{"name": port[0], "containerPort": port[1]}],
        "env": variables,
        "envFrom": [dict(source) for source in settings.env_from],
        # A task that runs but makes no progress is ended; see `tfdist check --alive`.
        "livenessProbe": {
            "exec": {"command": ["tfdist", "check", "--alive"]},
            "periodSeconds": _PROBE_SECONDS,
            "timeoutSeconds": _PROBE_SECONDS // 2,
            "failureThreshold": 3,
        },
        "resources": resources(workload, settings, role),
        "securityContext": merged(
            _CONTAINER_SECURITY, settings.container_security, "securityContext"
        ),
        "volumeMounts": mounts,
    }
    spec["containers"] = [
        {name: value for name, value in container.items() if value not in ([], {})}
    ]
    if volumes:
        spec["volumes"] = volumes
    return spec


def _check_expanded(workload: Workload, settings: Settings, names: Sequence[str]) -> None:
    """Rejects a variable in the command that no pod has: Kubernetes would leave it as it is."""
    if settings.env_from or settings.patches:  # These have others.
        return
    for name in workload.expand:
        if name not in (*names, *_FROM_CONTROLLERS):
            reject(
                "render(--expand)",
                f"{quote(name)} is not a variable of the pods; give it one with --env, or in a "
                f"file of --values such as env: {{{name}: {{fieldRef: {{fieldPath: ...}}}}}}",
            )


def resources(workload: Workload, settings: Settings, role: str) -> Manifest:
    """Returns what a task of the role asks for and may use."""
    size = settings.sizes.get(role)
    # As much asked for as allowed, so that the scheduler gives whole CPUs.
    asked: Manifest = {
        "cpu": (size and size.cpus) or workload.cpus,
        "memory": (size and size.memory) or workload.memory,
    }
    if gpus := _gpus(workload, settings, role):
        asked[settings.gpu_resource or _GPU] = gpus
    return {"requests": dict(asked), "limits": dict(asked)}


def _gpus(workload: Workload, settings: Settings, role: str) -> int:
    size = settings.sizes.get(role)
    if size and size.gpus is not None:
        return size.gpus
    return workload.gpus_per_worker if role == "worker" else 0


def _env(workload: Workload, settings: Settings, own: Mapping[str, str]) -> list[Manifest]:
    reference = {"name": secret_name(workload), "key": SECRET_KEY}
    values: Manifest = {
        **own,
        SECRET_VARIABLE: {"secretKeyRef": reference},
        HEARTBEAT_VARIABLE: _HEARTBEAT,
        **settings.env,
    }
    return [
        {"name": name, "value": value}
        if isinstance(value, str)
        else {"name": name, "valueFrom": dict(value)}
        for name, value in values.items()
    ]


def _volumes(settings: Settings, gpus: int) -> tuple[list[Manifest], list[Manifest]]:
    """Returns the container's mounts and the pod's volumes."""
    mounts: dict[str, Manifest] = {}
    volumes: dict[str, Manifest] = {}
    for source, name, path, read_only in settings.volumes:
        if path in mounts or path == _SHARED_MEMORY:
            reject("volumes", f"two are to be mounted at {quote(path)}; give each its own path")
        volume = f"{source}-{name}"
        mounts[path] = {"name": volume, "mountPath": path}
        if read_only:
            mounts[path]["readOnly"] = True
        volumes[volume] = {"name": volume, **_SOURCES[source](name)}
    if settings.shared_memory or gpus > 1:
        # NCCL moves data between the GPUs of a pod through it; 64 MB is too little.
        size = settings.shared_memory or _SHARED_MEMORY_SIZE
        mounts[_SHARED_MEMORY] = {"name": "shm", "mountPath": _SHARED_MEMORY}
        volumes["shm"] = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return list(mounts.values()), list(volumes.values())
