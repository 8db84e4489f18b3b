"""Writes a job as a TrainJob of Kubeflow Trainer, with the runtime that it runs in.

Trainer has no runtime for TensorFlow. A runtime is a JobSet with a policy. That for PyTorch tells
each pod how many there are, which one it is, and the address of the first; from these variables
`tfdist.Cluster.from_environment` reads the cluster, however many pods a TrainJob asks for. With
parameter servers the runtime holds the addresses of all tasks instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from tfdist.cluster.secret import VARIABLE as SECRET_VARIABLE
from tfdist.render import jobset
from tfdist.render.pod import CONTAINER, Manifest, metadata, resources
from tfdist.render.settings import Settings
from tfdist.render.workload import PORT, Workload
from tfdist.validation import reject

# Trainer changes the job with this label, in it the container of this name.
_NODE = "node"
_STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
_API = "trainer.kubeflow.org"
_VERSION = f"{_API}/v1alpha1"
_FRAMEWORK = {f"{_API}/framework": "tensorflow"}
# The port that Trainer's policy for PyTorch gives to the pods.
_TRAINER_PORT = 29500
_GANG_SECONDS = 1800
_MANAGER = "tfdist/render"
# What a TrainJob may change of its runtime's pods (`runtimePatches`), and of a container.
_OF_POD = (
    *("affinity", "imagePullSecrets", "nodeSelector", "securityContext", "serviceAccountName"),
    *("tolerations", "volumes"),
)
_OF_CONTAINER = ("securityContext", "volumeMounts")
# What it gives itself.
_GIVEN = ("env", "resources")


def trainjob(workload: Workload, settings: Settings | None = None) -> list[Manifest]:
    """Returns a TrainJob, trainer.kubeflow.org/v1alpha1, and in front of it its TrainingRuntime.

    Args:
        workload: The job.
        settings: How its pods are run; with a runtime, none is made.

    Raises:
        ConfigError: The settings contradict each other or the job, or are the runtime's.
    """
    settings = settings or Settings()
    reference = {"apiGroup": _API, "kind": "TrainingRuntime", "name": workload.name}
    trainer: Manifest = {
        "numNodes": workload.workers,
        "image": workload.image,
        "command": workload.words,
        "resourcesPerNode": resources(workload, settings, "worker"),
    }
    spec: Manifest = {"runtimeRef": reference, "trainer": trainer}
    if settings.deadline is not None:
        spec["activeDeadlineSeconds"] = settings.deadline
    made = []
    if settings.runtime is None:
        made.append(_runtime(workload, settings, "TrainingRuntime"))
    else:
        reference |= {"kind": "ClusterTrainingRuntime", "name": settings.runtime}
        trainer["env"], patch = _changes(workload, settings)
        if patch:
            node = {"name": _NODE, "template": {"spec": {"template": patch}}}
            runtime_spec = {"template": {"spec": {"replicatedJobs": [node]}}}
            spec["runtimePatches"] = [{"manager": _MANAGER, "trainingRuntimeSpec": runtime_spec}]
    head = {"apiVersion": _VERSION, "kind": "TrainJob"}
    return [*made, {**head, "metadata": metadata(workload, settings, queued=True), "spec": spec}]


def cluster_runtime(workload: Workload, settings: Settings | None = None) -> list[Manifest]:
    """Returns a ClusterTrainingRuntime, in which TrainJobs of all namespaces may run.

    Each TrainJob brings its own secret. With a namespace it is a TrainingRuntime.

    Args:
        workload: What a TrainJob without a command or an image runs.
        settings: How the pods are run.

    Raises:
        ConfigError: The settings contradict each other, or there are parameter servers.
    """
    settings = settings or Settings()
    if workload.ps:
        reject(
            "render(--ps)",
            "a shared runtime has none; render a trainjob, which gets its own runtime",
        )
    if settings.deadline is not None or settings.queue is not None:
        reject("render(--deadline, --queue)", "is for a job; give it to a trainjob")
    kind = "TrainingRuntime" if workload.namespace else "ClusterTrainingRuntime"
    runtime = _runtime(workload, settings, kind)
    spec = runtime["spec"]["template"]["spec"]
    # Each JobSet has its own name as subdomain.
    del spec["network"]["subdomain"]
    container = _node(spec["replicatedJobs"][0])
    env = container.get("env", [])
    container["env"] = [one for one in env if one["name"] != SECRET_VARIABLE]
    return [runtime]


def _runtime(workload: Workload, settings: Settings, kind: str) -> Manifest:
    policy: Manifest = {"numNodes": workload.workers}
    if not workload.ps:
        policy["torch"] = {}
    spec: Manifest = {"mlPolicy": policy}
    if settings.gang == "coscheduling":
        spec["podGroupPolicy"] = {"coscheduling": {"scheduleTimeoutSeconds": _GANG_SECONDS}}
    elif settings.gang:
        spec["podGroupPolicy"] = {settings.gang: {}}
    # The TrainJob has the deadline.
    settings = replace(settings, deadline=None)
    spec["template"] = {
        "spec": {
            **jobset.jobset_spec(workload, settings),
            "replicatedJobs": [_job(workload, settings, role) for role in workload.tasks],
        }
    }
    own = metadata(workload, settings)
    own["labels"] = {**own.get("labels", {}), **_FRAMEWORK}
    return {"apiVersion": _VERSION, "kind": kind, "metadata": own, "spec": spec}


def _job(workload: Workload, settings: Settings, role: str) -> Manifest:
    if workload.ps:
        env, port = jobset.addresses(workload, role, {"worker": _NODE}), PORT
    else:
        env, port = jobset.WAIT, _TRAINER_PORT
    job = jobset.replicated_job(workload, settings, role, env=env, port=port)
    if role == "worker":
        job |= {"name": _NODE, "template": {"metadata": {"labels": dict(_STEP)}, **job["template"]}}
    spec = job["template"]["spec"]
    for container in spec["template"]["spec"]["containers"]:
        if container["name"] == CONTAINER:
            container["name"] = _NODE
    for rule in spec["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule:
            rule["onExitCodes"]["containerName"] = _NODE
    return job


def _node(job: Manifest) -> Manifest:
    containers = job["template"]["spec"]["template"]["spec"]["containers"]
    return next(container for container in containers if container["name"] == _NODE)


def _changes(workload: Workload, settings: Settings) -> tuple[list[Manifest], Manifest]:
    """Returns the variables of a TrainJob's tasks, and its changes to its runtime's pods."""
    if workload.ps:
        reject(
            "render(--runtime)",
            "a shared runtime has no parameter servers; leave it out, so that the job gets its own",
        )
    for name, value in (("ttlSecondsAfterFinished", settings.ttl), ("gang", settings.gang)):
        if value is not None:
            _reject_as_runtimes(name)
    settings = replace(settings, deadline=None)
    mine, its = (_job(workload, one, "worker") for one in (settings, Settings()))
    pod, its_pod = (job["template"]["spec"]["template"] for job in (mine, its))
    spec, container = _differing(pod["spec"], its_pod["spec"]), {}
    if "containers" in spec:
        if len(spec.pop("containers")) > 1:
            _reject_as_runtimes("containers")
        container = _differing(_node(mine), _node(its))
    container = {name: value for name, value in container.items() if name not in _GIVEN}
    for name in [*(set(spec) - {*_OF_POD}), *(set(container) - {*_OF_CONTAINER})]:
        _reject_as_runtimes(name)
    if container:
        spec["containers"] = [{"name": _NODE, **container}]
    patch: Manifest = {}
    if changed := _differing(pod["metadata"], its_pod["metadata"]):
        patch["metadata"] = changed
    if spec:
        patch["spec"] = spec
    return _node(mine).get("env", []), patch


def _differing(mine: Mapping[str, Any], its: Mapping[str, Any]) -> Manifest:
    return {name: value for name, value in mine.items() if value != its.get(name)}


def _reject_as_runtimes(name: str) -> NoReturn:
    reject(
        "render(--runtime)",
        f"a TrainJob cannot change its runtime's {name}; give it to 'tfdist render runtime', or "
        "leave --runtime out",
    )
