"""Acts on the pods of a TFJob as Kubeflow's training operator does.

Rules: pkg/controller.v1/tensorflow and pkg/controller.v1/common of kubeflow/training-operator.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.pods.kubelet import NAMESPACE, Kubelet, Pod

_PORT = "tfjob-port"
_AGAIN = 128  # With restartPolicy ExitCode, codes from here on start a pod again.


class TFJob:
    """A TFJob.

    Attributes:
        state: Running, Completed, Failed or Deleted.
        restarts: How often a pod was made anew.

    Args:
        kubelet: Runs its pods.
        manifest: What was rendered.
    """

    def __init__(self, kubelet: Kubelet, manifest: Mapping[str, Any]) -> None:
        self.state, self.restarts = "Running", 0
        self._kubelet = kubelet
        self._name, self._spec = manifest["metadata"]["name"], manifest["spec"]
        assert self._spec["runPolicy"]["cleanPodPolicy"] == "Running"
        self._replicas = {
            role.lower(): replica for role, replica in self._spec["tfReplicaSpecs"].items()
        }
        assert all(one["restartPolicy"] == "ExitCode" for one in self._replicas.values())
        self._pods = {
            (role, index): [self._start(role, index)]
            for role, replica in self._replicas.items()
            for index in range(replica["replicas"])
        }

    def _start(self, role: str, index: int) -> Pod:
        name = f"{self._name}-{role}-{index}"
        env = {}
        if sum(replica["replicas"] for replica in self._replicas.values()) > 1:
            task = {"type": role, "index": index}
            config = {"cluster": self._cluster(), "task": task, "environment": "cloud"}
            env["TF_CONFIG"] = json.dumps(config)
        template = self._replicas[role]["template"]
        return self._kubelet.run(name, template, known_as=name, env=env)

    def _cluster(self) -> dict[str, list[str]]:
        cluster = {}
        for role, replica in self._replicas.items():
            (container,) = replica["template"]["spec"]["containers"]
            (port,) = [one for one in container["ports"] if one["name"] == _PORT]
            cluster[role] = [
                f"{self._name}-{role}-{index}.{NAMESPACE}.svc:{port['containerPort']}"
                for index in range(replica["replicas"])
            ]
        return cluster

    def history(self, role: str, index: int) -> list[Pod]:
        """Each pod there has been of a role and an index."""
        return self._pods[role, index]

    def reconcile(self) -> None:
        """Acts on what has become of its pods."""
        if self.state != "Running":
            return
        codes = {place: pods[-1].code for place, pods in self._pods.items()}
        if any(code and code < _AGAIN for code in codes.values()):
            self._end("Failed")
            return
        for place, code in codes.items():
            if code:
                self.restarts += 1
                self._pods[place].append(self._start(*place))
        if "chief" in self._replicas:
            awaited = [("chief", 0)]
        elif self._spec.get("successPolicy") == "AllWorkers":
            awaited = [place for place in codes if place[0] == "worker"]
        else:
            awaited = [("worker", 0)]
        if all(codes[place] == 0 for place in awaited):
            self._end("Completed")

    def delete(self) -> None:
        """Deletes it."""
        self._end("Deleted")

    def _end(self, state: str) -> None:
        self.state = state
        for pods in self._pods.values():
            pods[-1].delete()
