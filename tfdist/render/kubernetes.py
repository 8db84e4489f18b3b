"""Writes a job as documents for Kubernetes, with what keeps strangers out of it."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from tfdist.render.jobset import jobset
from tfdist.render.pod import SECRET_KEY, Manifest, metadata, secret_name
from tfdist.render.settings import Settings
from tfdist.render.tfjob import tfjob
from tfdist.render.trainjob import cluster_runtime, trainjob
from tfdist.render.workload import Workload
from tfdist.validation import quote, reject

# The label with the name of a pod's job. A TrainJob makes a JobSet of the same name.
_TFJOB = "training.kubeflow.org/job-name"
_JOBSET = "jobset.sigs.k8s.io/jobset-name"

_Maker = Callable[[Workload, Settings], list[Manifest]]
# Of each kind, what makes it, and the label of its pods; None for what has no pods.
KINDS: dict[str, tuple[_Maker, str | None]] = {
    "tfjob": (lambda workload, settings: [tfjob(workload, settings)], _TFJOB),
    "jobset": (lambda workload, settings: [jobset(workload, settings)], _JOBSET),
    "trainjob": (trainjob, _JOBSET),
    "runtime": (cluster_runtime, None),
}


def documents(kind: str, workload: Workload, settings: Settings | None = None) -> list[Manifest]:
    """Returns a job, the last of the documents, and what it needs.

    TensorFlow's servers do what any caller asks, files included, so a NetworkPolicy lets only the
    job's own pods call them; and only tasks that have the job's secret take part in it.

    Args:
        kind: One of `KINDS`.
        workload: The job; if it names a Secret, none is made.
        settings: How its pods are run.

    Raises:
        ConfigError: The settings contradict each other or the job.
    """
    settings = settings or Settings()
    make, label = KINDS[kind]
    if settings.runtime is not None and kind != "trainjob":
        reject("render(--runtime)", f"{quote(settings.runtime)} is given; only a trainjob has one")
    if label is None:
        return make(workload, settings)
    made = [_policy(workload, settings, {label: workload.name}), *make(workload, settings)]
    if workload.secret is None:
        made.insert(1, _secret(workload, settings))
    return made


def _policy(workload: Workload, settings: Settings, label: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(workload, settings),
        "spec": {
            "podSelector": {"matchLabels": dict(label)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": dict(label)}}]}],
        },
    }


def _secret(workload: Workload, settings: Settings) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(workload, settings, name=secret_name(workload)),
        "stringData": {SECRET_KEY: secrets.token_hex(32)},
    }
