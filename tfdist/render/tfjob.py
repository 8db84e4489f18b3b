"""Writes a job as a TFJob, kubeflow.org/v1, whose operator writes TF_CONFIG into each pod."""

from __future__ import annotations

from tfdist.render.pod import Manifest, metadata, template
from tfdist.render.settings import Settings
from tfdist.render.workload import PORT, Workload

_KINDS = {"chief": "Chief", "ps": "PS", "worker": "Worker"}


def tfjob(workload: Workload, settings: Settings | None = None) -> Manifest:
    """Returns a TFJob.

    With parameter servers there is a chief, which coordinates, and the job ends with it. Tasks
    start again, one at a time, after exit codes of 128 and above.

    Args:
        workload: The job.
        settings: How its pods are run.

    Raises:
        ConfigError: The settings contradict each other or the job.
    """
    settings = settings or Settings()
    policy: Manifest = {"cleanPodPolicy": "Running"}
    if settings.deadline is not None:
        policy["activeDeadlineSeconds"] = settings.deadline
    if settings.ttl is not None:
        policy["ttlSecondsAfterFinished"] = settings.ttl
    if settings.gang:
        policy["schedulingPolicy"] = {"minAvailable": sum(workload.tasks.values())}
        if settings.priority_class:
            policy["schedulingPolicy"]["priorityClass"] = settings.priority_class
    spec: Manifest = {"runPolicy": policy}
    if not workload.ps:
        spec["successPolicy"] = "AllWorkers"
    spec["tfReplicaSpecs"] = {
        _KINDS[role]: {
            "replicas": count,
            "restartPolicy": "ExitCode",
            "template": template(workload, settings, role, port=("tfjob-port", PORT), env={}),
        }
        for role, count in workload.tasks.items()
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": metadata(workload, settings, queued=True),
        "spec": spec,
    }
