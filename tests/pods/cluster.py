"""A cluster for the jobs of one test: renders a job, applies it, and follows it to its end."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.chaos.harness import SOON, wait
from tests.pods.jobset import JobSet
from tests.pods.kubelet import Kubelet, Pod
from tests.pods.network import Network
from tests.pods.tfjob import TFJob
from tests.pods.trainjob import jobset_of

KINDS = ("jobset", "trainjob", "tfjob")


class Run:
    """A job that was applied.

    Attributes:
        kind: One of KINDS.
        job: What acts on its pods.
    """

    def __init__(self, kind: str, job: JobSet | TFJob) -> None:
        self.kind, self.job = kind, job

    def history(self, task: str) -> list[Pod]:
        """The pods of a task, such as worker/0, in the order of their lives."""
        role, _, index = task.partition("/")
        if self.kind == "trainjob" and role == "worker":
            role = "node"
        return self.job.history(role, int(index))

    def pod(self, task: str) -> Pod:
        """The present pod of a task."""
        return self.history(task)[-1]

    def until(
        self, condition: Callable[[], Any], what: str, seconds: float = SOON, ended: bool = False
    ) -> Any:
        """Waits for something while the controllers act, and the job has not ended."""

        def now() -> Any:
            self.job.reconcile()
            found = condition()
            assert found or ended or self.job.state == "Running", f"{self.job.state}: no {what}"
            return found

        return wait(now, seconds, what)

    def until_line(self, task: str, pattern: str) -> str:
        """Waits for a line of a task's present pod."""
        found: list[str] = self.until(lambda: self.pod(task).find(pattern), pattern)
        return found[0]

    def until_ended(self, pod: Pod) -> int:
        """Waits for a pod's end; returns its exit code."""
        self.until(lambda: pod.code is not None, f"the end of {pod.name}", ended=True)
        assert pod.code is not None
        return pod.code

    def end(self, seconds: float = 3 * SOON) -> str:
        """Waits for the job's end; returns its state."""
        self.until(lambda: self.job.state != "Running", "its end", seconds, ended=True)
        return self.job.state


class Cluster:
    """A cluster.

    Attributes:
        network: Its network.
        kubelet: What runs its pods.

    Args:
        grace: Seconds that a pod has after SIGTERM.
    """

    def __init__(self, grace: float) -> None:
        # Not pytest's folder, which only its user may enter.
        self._folder = tempfile.TemporaryDirectory(prefix="tfdist-pods-")
        self.network = Network()
        self.kubelet = Kubelet(self.network, Path(self._folder.name), grace)
        self._runs: list[Run] = []

    def apply(
        self, kind: str, flags: str, command: Sequence[str], env: Mapping[str, Any] | None = None
    ) -> Run:
        """Renders a job, and does with the documents what `kubectl apply` would have done."""
        given = [f"--env={name}={value}" for name, value in (env or {}).items()]
        words = ["render", kind, "--name=job", "--image=tfdist", "--cpus=1", *flags.split()]
        rendered = subprocess.run(
            [sys.executable, "-m", "tfdist", *words, *given, "--", *command],
            capture_output=True,
            text=True,
            check=True,
        )
        documents = {one["kind"]: one for one in yaml.safe_load_all(rendered.stdout)}
        secret = documents["Secret"]
        self.kubelet.secrets[secret["metadata"]["name"]] = secret["stringData"]
        if kind == "trainjob":
            documents["JobSet"] = jobset_of(documents["TrainJob"], documents["TrainingRuntime"])
        controller = TFJob if kind == "tfjob" else JobSet
        run = Run(kind, controller(self.kubelet, documents[controller.__name__]))
        self._runs.append(run)
        return run

    def text(self) -> str:
        """All that its pods have said, for a message."""
        return "\n".join(pod.text() for pod in self.kubelet.pods)

    def close(self) -> None:
        """Ends all of it, and sees that its pods had ended by themselves soon after their job."""
        ended = all(run.job.state != "Running" for run in self._runs)
        until = time.monotonic() + (SOON if ended else 0)
        while time.monotonic() < until and any(pod.code is None for pod in self.kubelet.pods):
            time.sleep(0.05)
        running = self.kubelet.close()
        self.network.close()
        self._folder.cleanup()
        assert not (ended and running), f"pods ran on after their job: {running}"
