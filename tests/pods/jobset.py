"""Acts on the Jobs of a JobSet as its controller does.

Rules: https://jobset.sigs.k8s.io/docs/concepts/.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.pods.indexed_job import IndexedJob
from tests.pods.kubelet import Kubelet, Pod


class JobSet:
    """A JobSet.

    Attributes:
        state: Running, Completed, Failed or Deleted.
        restarts: How often all its Jobs were made anew.

    Args:
        kubelet: Runs its pods.
        manifest: What was rendered.
    """

    def __init__(self, kubelet: Kubelet, manifest: Mapping[str, Any]) -> None:
        self.state, self.restarts = "Running", 0
        self._kubelet = kubelet
        self._name, self._spec = manifest["metadata"]["name"], manifest["spec"]
        self._deleting = False
        self._past: dict[str, dict[int, list[Pod]]] = {}
        self._jobs = self._start()

    def _start(self) -> dict[str, IndexedJob]:
        network = self._spec["network"]
        assert network["enableDNSHostnames"] and network["publishNotReadyAddresses"]
        return {
            job["name"]: IndexedJob(
                self._kubelet,
                f"{self._name}-{job['name']}-0",
                job["template"]["spec"],
                network["subdomain"],
            )
            for job in self._spec["replicatedJobs"]
        }

    def history(self, job: str, index: int) -> list[Pod]:
        """Each pod there has been of a replicated job and an index."""
        return [*self._past.get(job, {}).get(index, []), *self._jobs[job].all[index]]

    def reconcile(self) -> None:
        """Acts on what has become of its Jobs."""
        if self._deleting:
            self._restart()
            return
        if self.state != "Running":
            return
        for job in self._jobs.values():
            job.reconcile()
        reasons = [job.reason for job in self._jobs.values() if job.reason]
        if reasons:
            policy = self._spec["failurePolicy"]
            for_good = any(reasons[0] in rule["onJobFailureReasons"] for rule in policy["rules"])
            if for_good or self.restarts >= policy["maxRestarts"]:
                self._end("Failed")
            else:
                self._deleting = True
        elif all(job.complete for job in self._awaited):
            self._end("Completed")

    @property
    def _awaited(self) -> list[IndexedJob]:
        policy = self._spec.get("successPolicy", {"operator": "All"})
        assert policy["operator"] == "All"
        names = policy.get("targetReplicatedJobs", list(self._jobs))
        return [self._jobs[name] for name in names]

    def delete(self) -> None:
        """Deletes it."""
        self._end("Deleted")

    def _end(self, state: str) -> None:
        self.state = state
        for job in self._jobs.values():
            job.delete()

    def _restart(self) -> None:
        for job in self._jobs.values():
            job.delete()
        if not all(job.gone for job in self._jobs.values()):
            return
        for name, job in self._jobs.items():
            for index, pods in job.all.items():
                self._past.setdefault(name, {}).setdefault(index, []).extend(pods)
        self.restarts += 1
        self._deleting = False
        self._jobs = self._start()
