"""Writes a job as a TrainJob of Kubeflow Trainer, with the runtime that it runs in.

Trainer has no runtime for TensorFlow. A runtime is a JobSet with a policy. That for PyTorch tells
each pod how many there are, which one it is, and the address of the first; from these variables
`tfdist.Cluster.from_environment` reads the cluster, however many pods a TrainJob asks for. Beside
parameter servers the runtime holds the addresses of all tasks instead.
"""

from __future__ import annotations

from dataclasses import replace

from tfdist.render import jobset
from tfdist.render.metadata import metadata
from tfdist.render.pod import CONTAINER, Manifest, resources
from tfdist.render.settings import Settings
from tfdist.render.workload import PORT, Workload

# Trainer changes the job with this label, in it the container of this name.
_NODE = "node"
_STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
_API = "trainer.kubeflow.org"
_VERSION = f"{_API}/v1alpha1"
# That which Trainer's policy for PyTorch names to the pods.
_TRAINER_PORT = 29500
_GANG_SECONDS = 1800
_FRAMEWORK = {"trainer.kubeflow.org/framework": "tensorflow"}


def trainjob(workload: Workload, settings: Settings | None = None) -> list[Manifest]:
    """Returns a TrainingRuntime and a TrainJob, trainer.kubeflow.org/v1alpha1.

    Args:
        workload: The job.
        settings: How its pods are run.

    Raises:
        ConfigError: The settings contradict each other or the job.
    """
    settings = settings or Settings()
    job: Manifest = {
        "runtimeRef": {"apiGroup": _API, "kind": "TrainingRuntime", "name": workload.name},
        "trainer": {
            "numNodes": workload.workers,
            "image": workload.image,
            "command": list(workload.command),
            "resourcesPerNode": resources(workload, settings, "worker"),
        },
    }
    if settings.deadline is not None:
        job["activeDeadlineSeconds"] = settings.deadline
    return [
        _runtime(workload, replace(settings, deadline=None)),
        {
            "apiVersion": _VERSION,
            "kind": "TrainJob",
            "metadata": metadata(workload, settings, queued=True),
            "spec": job,
        },
    ]


def _runtime(workload: Workload, settings: Settings) -> Manifest:
    policy: Manifest = {"numNodes": workload.workers}
    if not workload.ps:
        policy["torch"] = {}
    spec: Manifest = {"mlPolicy": policy}
    if settings.gang == "coscheduling":
        spec["podGroupPolicy"] = {"coscheduling": {"scheduleTimeoutSeconds": _GANG_SECONDS}}
    elif settings.gang:
        spec["podGroupPolicy"] = {settings.gang: {}}
    spec["template"] = {
        "spec": {
            **jobset.jobset_spec(workload, settings, deadline=None),
            "replicatedJobs": [_job(workload, settings, role) for role in workload.tasks],
        }
    }
    own = metadata(workload, settings)
    own["labels"] = {**own.get("labels", {}), **_FRAMEWORK}
    return {"apiVersion": _VERSION, "kind": "TrainingRuntime", "metadata": own, "spec": spec}


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
