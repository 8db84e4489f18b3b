"""Writes a job as a TFJob or a JobSet for Kubernetes.

With parameter servers there is a chief, which coordinates, and workers are
replaced one at a time. Without, all tasks are workers and start again
together. Both kinds act on tfdist's exit codes: 1 and 2 end the job, 128 and
above (a peer was lost, the pod was told to stop) start it again.
"""

from __future__ import annotations

import secrets
from typing import Any

from tfdist.cluster.secret import VARIABLE as SECRET_VARIABLE
from tfdist.errors import EXIT_PREEMPTED
from tfdist.render.workload import (
    FOR_GOOD,
    GRACE_SECONDS,
    MAX_RESTARTS,
    PORT,
    WAIT_SECONDS,
    Workload,
)
from tfdist.runtime.heartbeat import VARIABLE as HEARTBEAT_VARIABLE

# TFJob gives TF_CONFIG to the container of this name only.
CONTAINER = "tensorflow"

# Where a pod finds the name of its job.
_LABELS = {
    "TFJob": "training.kubeflow.org/job-name",
    "JobSet": "jobset.sigs.k8s.io/jobset-name",
}
_SECRET_KEY = "secret"
# Every container has a /dev/shm in which it may write, whoever it runs as.
_HEARTBEAT = "/dev/shm/tfdist-heartbeat"
_PROBE_SECONDS = 60

Manifest = dict[str, Any]


def documents(job: Manifest, workload: Workload) -> list[Manifest]:
    """Returns a job with what keeps strangers from it.

    TensorFlow's servers do what any caller asks, files included, so a NetworkPolicy lets only the
    job's own pods call them; and only tasks that have the job's secret take part in it.

    Args:
        job: A TFJob or a JobSet of this module.
        workload: What it was made of; with a Secret of its own, none is made.
    """
    label = {_LABELS[job["kind"]]: workload.name}
    policy: Manifest = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(workload),
        "spec": {
            "podSelector": {"matchLabels": dict(label)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": dict(label)}}]}],
        },
    }
    if workload.secret is not None:
        return [policy, job]
    secret: Manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(workload) | {"name": _secret_name(workload)},
        "stringData": {_SECRET_KEY: secrets.token_hex(32)},
    }
    return [policy, secret, job]


def _secret_name(workload: Workload) -> str:
    return workload.secret or f"{workload.name}-tfdist"


def tfjob(workload: Workload) -> Manifest:
    """Returns a TFJob, kubeflow.org/v1. The operator writes TF_CONFIG into each pod."""
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
    """Returns a JobSet, jobset.x-k8s.io/v1alpha2, with one indexed Job for each role.

    Each pod has its index in JOB_COMPLETION_INDEX, from Kubernetes, and the
    addresses of all tasks in TFDIST_WORKERS, TFDIST_PS and TFDIST_CHIEF, from
    which `tfdist.Cluster.from_environment` reads the cluster.
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
                    "name": "failedForGood",
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
                _on_exit_codes("FailJob", *FOR_GOOD),
                # Evicted, drained, preempted, or its node is gone: replaced, and no failure.
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                # Told to stop, or to stop together with one that was.
                _on_exit_codes("Ignore", EXIT_PREEMPTED),
            ]
        },
        # A Job with a podFailurePolicy replaces its pods, never the container.
        "template": {"spec": {"restartPolicy": "Never", **pod}},
    }


def _on_exit_codes(action: str, *values: int) -> Manifest:
    return {
        "action": action,
        "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": list(values)},
    }


def _addresses(workload: Workload, role: str) -> dict[str, str]:
    variables = {"chief": "TFDIST_CHIEF", "ps": "TFDIST_PS", "worker": "TFDIST_WORKERS"}
    env = {}
    for name, count in workload.tasks.items():
        pods = f"[0-{count - 1}]" if count > 1 else "0"
        env[variables[name]] = f"{workload.name}-{name}-0-{pods}.{workload.name}:{PORT}"
    return env | {"TFDIST_TASK_TYPE": role, "TFDIST_WAIT": str(WAIT_SECONDS)}


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
    reference = {"name": _secret_name(workload), "key": _SECRET_KEY}
    container["env"] = [
        *({"name": name, "value": value} for name, value in env.items()),
        {"name": SECRET_VARIABLE, "valueFrom": {"secretKeyRef": reference}},
        {"name": HEARTBEAT_VARIABLE, "value": _HEARTBEAT},
    ]
    # A task that lives and makes no progress is ended; see `tfdist check --alive`.
    container["livenessProbe"] = {
        "exec": {"command": ["tfdist", "check", "--alive"]},
        "periodSeconds": _PROBE_SECONDS,
        "timeoutSeconds": _PROBE_SECONDS // 2,
        "failureThreshold": 3,
    }
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
