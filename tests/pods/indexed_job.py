"""Acts on the pods of an indexed Job as its controller does.

Rules: https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy. No pod is
evicted here, so none has the condition DisruptionTarget.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tests.pods.kubelet import Kubelet, Pod

_INDEX = "batch.kubernetes.io/job-completion-index"
_BACKOFF = 1.0  # Ten seconds there, and twice as many after each further failure.


class IndexedJob:
    """A Job.

    Attributes:
        reason: Why it has failed; "" where it has not.
        complete: Whether all its pods have ended well.
        pods: The present pod of each index.
        all: Each pod there has been, by index.

    Args:
        kubelet: Runs its pods.
        name: Its name.
        spec: Its spec.
        subdomain: That of its pods.
    """

    def __init__(
        self, kubelet: Kubelet, name: str, spec: Mapping[str, Any], subdomain: str
    ) -> None:
        assert spec["completionMode"] == "Indexed" and spec["parallelism"] == spec["completions"]
        self.reason, self.complete = "", False
        self._kubelet, self._name, self._spec, self._subdomain = kubelet, name, spec, subdomain
        self._failing, self._failures, self._not_before = "", 0, 0.0
        self.all: dict[int, list[Pod]] = {index: [] for index in range(spec["completions"])}
        self.pods = {index: self._start(index) for index in self.all}

    def _start(self, index: int) -> Pod:
        host = f"{self._name}-{index}"
        made = self._kubelet.run(
            f"{host}-{len(self._kubelet.pods):05}",
            self._spec["template"],
            host=host,
            known_as=f"{host}.{self._subdomain}",
            annotations={_INDEX: str(index)},
            env={
                "JOB_COMPLETION_INDEX": {
                    "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{_INDEX}']"}}
                }
            },
        )
        self.all[index].append(made)
        return made

    def reconcile(self) -> None:
        """Acts on what has become of its pods."""
        codes = {index: pod.code for index, pod in self.pods.items()}
        failed = {index: self._action(code) for index, code in codes.items() if code}
        if "FailJob" in failed.values():
            self._failing = self._failing or "PodFailurePolicy"
        counted = sum(action == "Count" for action in failed.values())
        if self._failures + counted > self._spec["backoffLimit"]:
            self._failing = self._failing or "BackoffLimitExceeded"
        if self._failing:
            self.delete()
            if self.gone:
                self.reason = self._failing
            return
        self.complete = all(code == 0 for code in codes.values())
        if failed and not self._not_before:
            self._not_before = time.monotonic() + _BACKOFF
        if failed and time.monotonic() > self._not_before:
            self._not_before = 0.0
            self._failures += counted
            for index in failed:
                self.pods[index] = self._start(index)

    def _action(self, code: int) -> str:
        for rule in self._spec["podFailurePolicy"]["rules"]:
            match rule:
                case {"onExitCodes": {"operator": "In", "values": values}} if code in values:
                    return str(rule["action"])
        return "Count"

    def delete(self) -> None:
        """Tells its pods to end."""
        for pod in self.pods.values():
            pod.delete()

    @property
    def gone(self) -> bool:
        """Whether none of its pods runs."""
        return all(pod.code is not None for pod in self.pods.values())
