"""What the webhooks of the controllers and of Pod Security refuse, and no schema says.

From kubernetes-sigs/jobset, pkg/webhooks/jobset_webhook.go; kubeflow/training-operator,
pkg/webhooks/tensorflow; kubeflow/trainer, pkg/webhooks and pkg/runtime/framework/plugins; and the
profile "restricted" of Kubernetes' Pod Security Standards. Of custom resources, whose schemas are
not at hand, the fields that there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate

_RULE_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_TORCH = {
    *("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
}

_RUN_POLICY = (
    "activeDeadlineSeconds cleanPodPolicy schedulingPolicy suspend ttlSecondsAfterFinished"
)
_JOBSET = "failurePolicy network replicatedJobs successPolicy suspend ttlSecondsAfterFinished"
_TRAINJOB = "activeDeadlineSeconds runtimePatches runtimeRef suspend trainer"
_TRAINER = "args command env image numNodes resourcesPerNode"
_RUNTIME = "mlPolicy podGroupPolicy template"
_PATCHED_POD = (
    "affinity containers imagePullSecrets initContainers nodeSelector schedulingGates "
    "securityContext serviceAccountName terminationGracePeriodSeconds tolerations volumes"
)
_VOLUMES = "configMap csi downwardAPI emptyDir ephemeral persistentVolumeClaim projected secret"


def refusals(manifest: dict[str, Any]) -> Iterator[str]:
    """What the schema, the webhook of the manifest's kind and Pod Security would say."""
    name, spec = manifest["metadata"]["name"], manifest.get("spec", {})
    match manifest["kind"]:
        case "TFJob":
            yield from _tfjob(name, spec)
        case "JobSet":
            yield from _jobset(name, spec)
        case "TrainJob":
            yield from _trainjob(name, spec)
        case "TrainingRuntime" | "ClusterTrainingRuntime":
            yield from _runtime(name, spec)
        case _:
            yield from _schema(manifest)
    for role, _, template in templates(manifest):
        yield from (f"{role}: {fault}" for fault in _pod(template))


def templates(manifest: dict[str, Any]) -> list[tuple[str, int, dict[str, Any]]]:
    """(role, replicas, template of the pods) of each kind of task."""
    spec = manifest.get("spec", {})
    if manifest["kind"] == "TFJob":
        return [
            (role.lower(), replica["replicas"], replica["template"])
            for role, replica in spec["tfReplicaSpecs"].items()
        ]
    if manifest["kind"].endswith("TrainingRuntime"):
        spec = spec["template"]["spec"]
    return [
        (job["name"], job["template"]["spec"]["completions"], job["template"]["spec"]["template"])
        for job in spec.get("replicatedJobs", [])
    ]


def not_restricted(pod: dict[str, Any]) -> Iterator[str]:
    """What Pod Security's profile "restricted" refuses in a pod's spec."""
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield f"{field} is given"
    for volume in pod.get("volumes", []):
        if not set(volume) - {"name"} <= set(_VOLUMES.split()):
            yield f"volume {volume['name']} is of a kind that is not allowed"
    own = pod.get("securityContext", {})
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        security = {**own, **container.get("securityContext", {})}
        capabilities = security.get("capabilities", {})
        wrong = {
            "privileged": security.get("privileged", False),
            "allowPrivilegeEscalation": security.get("allowPrivilegeEscalation") is not False,
            "runAsNonRoot": security.get("runAsNonRoot") is not True,
            "runAsUser": security.get("runAsUser") == 0,
            "seccompProfile": security.get("seccompProfile", {}).get("type")
            not in ("RuntimeDefault", "Localhost"),
            "capabilities.drop": "ALL" not in capabilities.get("drop", []),
            "capabilities.add": set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"},
            "hostPort": any("hostPort" in port for port in container.get("ports", [])),
        }
        yield from (f"{container['name']}: {field}" for field, bad in wrong.items() if bad)


def _schema(document: dict[str, Any]) -> Iterator[str]:
    try:
        kubernetes_validate.validate(document, "1.30", strict=True)
    except kubernetes_validate.ValidationError as error:
        yield f"{document['kind']}: {error}"


def _pod(template: dict[str, Any]) -> Iterator[str]:
    metadata = {"name": "x", **template.get("metadata", {})}
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    yield from _schema({**head, "spec": template["spec"]})
    yield from not_restricted(template["spec"])


def _unknown(where: str, given: dict[str, Any], allowed: str) -> Iterator[str]:
    yield from (f"{where}: {name} is no field" for name in set(given) - set(allowed.split()))


def _is_label(text: str) -> bool:
    return bool(_DNS_1035.fullmatch(text)) and len(text) <= 63


def _tfjob(name: str, spec: dict[str, Any]) -> Iterator[str]:
    if not _is_label(name):
        yield f"{name}: no name"
    yield from _unknown("spec", spec, "runPolicy successPolicy tfReplicaSpecs")
    yield from _unknown("runPolicy", spec.get("runPolicy", {}), _RUN_POLICY)
    for role, replica in spec["tfReplicaSpecs"].items():
        names = [container["name"] for container in replica["template"]["spec"]["containers"]]
        if "tensorflow" not in names:
            yield f"{role}: no container is named tensorflow"
    if sum(role.lower() in ("chief", "master") for role in spec["tfReplicaSpecs"]) > 1:
        yield "more than one chief"


def _jobset(name: str, spec: dict[str, Any]) -> Iterator[str]:
    jobs = {job["name"]: job for job in spec["replicatedJobs"]}
    if not _is_label(spec.get("network", {}).get("subdomain", name)):
        yield "network.subdomain: no label"
    yield from _unknown("spec", spec, _JOBSET)
    for job in jobs.values():
        inner = job["template"]["spec"]
        head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
        yield from _schema({**head, "spec": inner})
        pod = inner.get("completions") or inner.get("parallelism") or 1
        if not _is_label(f"{name}-{job['name']}-{job.get('replicas', 1) - 1}-{pod - 1}"):
            yield f"{job['name']}: its pods have names that are too long, or none"
        rules = inner.get("podFailurePolicy", {}).get("rules", [])
        if rules and inner["template"]["spec"].get("restartPolicy") != "Never":
            yield f"{job['name']}: podFailurePolicy needs restartPolicy Never"
        for rule in rules:
            values = rule.get("onExitCodes", {}).get("values", [])
            if values != sorted(set(values)):
                yield f"{job['name']}: exit codes are to ascend, each once"
    rules = spec.get("failurePolicy", {}).get("rules", [])
    names = [rule.get("name", f"failurePolicyRule{i}") for i, rule in enumerate(rules)]
    if len(set(names)) != len(names):
        yield "failurePolicy: two rules have one name"
    for rule_name in names:
        if not _RULE_NAME.fullmatch(rule_name) or len(rule_name) > 128:
            yield f"failurePolicy: {rule_name} is no name of a rule"
    for rule in [*rules, spec.get("successPolicy", {})]:
        for target in rule.get("targetReplicatedJobs", []):
            if target not in jobs:
                yield f"no replicatedJob {target}"


def _runtime(name: str, spec: dict[str, Any]) -> Iterator[str]:
    yield from _unknown("spec", spec, _RUNTIME)
    if len(set(spec["mlPolicy"]) - {"numNodes"}) > 1:
        yield "mlPolicy: more than one policy"
    yield from _jobset(name, spec["template"]["spec"])
    steps = []
    for job in spec["template"]["spec"]["replicatedJobs"]:
        inner = job["template"]["spec"]
        containers = [container["name"] for container in inner["template"]["spec"]["containers"]]
        for rule in inner["podFailurePolicy"]["rules"]:
            if rule.get("onExitCodes", {}).get("containerName", containers[0]) not in containers:
                yield f"{job['name']}: podFailurePolicy is of another container"
        if job["template"].get("metadata", {}).get("labels", {}).get(_STEP) == "trainer":
            steps.append(job["name"])
            if job.get("replicas", 1) != 1 or "node" not in containers:
                yield f"{job['name']}: needs one replica and a container named node"
    if steps != ["node"]:
        yield "no job named node is the trainer's"


def _trainjob(name: str, spec: dict[str, Any]) -> Iterator[str]:
    if not _is_label(name):
        yield f"{name}: no name"
    yield from _unknown("spec", spec, _TRAINJOB)
    yield from _unknown("trainer", spec["trainer"], _TRAINER)
    if _TORCH & {entry["name"] for entry in spec["trainer"].get("env", [])}:
        yield "trainer.env: has what the policy sets"
    for patch in spec.get("runtimePatches", []):
        if not re.fullmatch(r"[-a-z0-9.]+/[A-Za-z0-9._~-]+", patch["manager"]):
            yield "runtimePatches: manager is no path with a domain"
        for job in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]:
            pod = job["template"]["spec"]["template"].get("spec", {})
            yield from _unknown("runtimePatches", pod, _PATCHED_POD)
            for container in pod.get("containers", []):
                # The webhook refuses env of node.
                yield from _unknown("containers", container, "name securityContext volumeMounts")
