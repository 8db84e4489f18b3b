"""Makes the JobSet of a TrainJob and its runtime, as Kubeflow Trainer does.

Rules: pkg/runtime/core and pkg/runtime/framework/plugins (torch, jobset) of kubeflow/trainer.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def jobset_of(trainjob: Mapping[str, Any], runtime: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JobSet.

    Args:
        trainjob: The TrainJob.
        runtime: The runtime that it names.
    """
    name, trainer = trainjob["metadata"]["name"], trainjob["spec"]["trainer"]
    reference = trainjob["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    spec = copy.deepcopy(runtime["spec"]["template"]["spec"])
    for job in spec["replicatedJobs"]:
        labels = job["template"].get("metadata", {}).get("labels", {})
        if labels.get(_STEP) != "trainer":
            continue
        inner = job["template"]["spec"]
        inner["parallelism"] = inner["completions"] = trainer["numNodes"]
        for container in inner["template"]["spec"]["containers"]:
            if container["name"] == "node":
                container |= {key: trainer[key] for key in ("image", "command")}
                container["resources"] = trainer["resourcesPerNode"]
                given = {entry["name"]: entry for entry in container["env"]}
                given |= {entry["name"]: entry for entry in trainer.get("env", [])}
                if "torch" in runtime["spec"]["mlPolicy"]:
                    given |= _torch(name, trainer["numNodes"])
                container["env"] = list(given.values())
    spec["network"].setdefault("subdomain", name)
    return {"kind": "JobSet", "metadata": {"name": name}, "spec": spec}


def _torch(name: str, count: int) -> dict[str, dict[str, Any]]:
    values = {
        "PET_NNODES": str(count),
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": "29500",
    }
    entries = {key: {"name": key, "value": value} for key, value in values.items()}
    rank = {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}
    return {**entries, "PET_NODE_RANK": rank}
