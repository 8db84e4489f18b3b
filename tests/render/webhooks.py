"""What the webhooks of the JobSet and TFJob controllers refuse, and no schema says.

From kubernetes-sigs/jobset, pkg/webhooks/jobset_webhook.go, and kubeflow/training-operator,
pkg/webhooks/tensorflow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_RULE_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def refusals(manifest: dict[str, Any]) -> Iterator[str]:
    """What the webhook of the manifest's kind would say."""
    name, spec = manifest["metadata"]["name"], manifest["spec"]
    if manifest["kind"] == "TFJob":
        yield from _tfjob(name, spec)
    else:
        yield from _jobset(name, spec)


def _is_label(text: str) -> bool:
    return bool(_DNS_1035.fullmatch(text)) and len(text) <= 63


def _tfjob(name: str, spec: dict[str, Any]) -> Iterator[str]:
    if not _is_label(name):
        yield f"{name}: no name"
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
    for job in jobs.values():
        inner = job["template"]["spec"]
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
