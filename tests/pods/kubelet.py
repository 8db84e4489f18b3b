"""Runs pods as a kubelet does, one container each."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.harness import SOON, wait
from tests.pods import container
from tests.pods.network import Network

NAMESPACE = "default"
_DOMAIN = f"{NAMESPACE}.svc.cluster.local"
_SEARCH = f"{_DOMAIN} svc.cluster.local cluster.local"
_CLUSTER_ENV = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
_PASSWD = "root:x:0:0:root:/root:/bin/sh\ntfdist:x:1000:0::/home/tfdist:/bin/sh\n"
_GRACE = 120  # Seconds that manifests give, for which `Kubelet.grace` stands.


class Kubelet:
    """Runs the pods of one cluster.

    Attributes:
        network: Their network.
        folder: Has what each pod is given and says, and the volumes of claims.
        grace: Seconds that a pod has after SIGTERM.
        secrets: The data of each Secret.
        pods: All pods there have been.

    Args:
        network: Their network.
        folder: An empty folder.
        grace: Seconds that a pod has after SIGTERM.
    """

    def __init__(self, network: Network, folder: Path, grace: float) -> None:
        self.network, self.folder, self.grace = network, folder, grace
        self.secrets: dict[str, Mapping[str, str]] = {}
        self.pods: list[Pod] = []

    def run(self, name: str, template: Mapping[str, Any], **identity: Any) -> Pod:
        """Starts a pod; see `Pod`."""
        pod = Pod(self, name, template, **identity)
        self.pods.append(pod)
        return pod

    def claim(self, name: str) -> Path:
        """The folder that is a claim's volume, which the group of all pods may write to."""
        path = self.folder / "claims" / name
        if not path.exists():
            path.mkdir(parents=True)
            os.chown(path, 0, container.GROUP)
            path.chmod(0o775)
        return path

    def close(self) -> list[str]:
        """Ends all pods; returns those that had not ended."""
        running = [pod.name for pod in self.pods if pod.code is None]
        for pod in self.pods:
            pod.end()
        return running


class Pod:
    """A pod.

    Attributes:
        name: Its name.
        address: Its address.
        log: What it has said.
        told: The time of SIGTERM; None before.
        ended: The time at which its end was seen; None before.

    Args:
        kubelet: Runs it.
        name: Its name.
        template: Its metadata and spec.
        known_as: Its name in the cluster's DNS, without the domain.
        host: Its host name; its name by default.
        annotations: Those that its controller gives it.
        env: What its controller adds to the environment.
    """

    def __init__(
        self,
        kubelet: Kubelet,
        name: str,
        template: Mapping[str, Any],
        *,
        known_as: str,
        host: str | None = None,
        annotations: Mapping[str, str] | None = None,
        env: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.told: float | None = None
        self.ended: float | None = None
        self._kubelet = kubelet
        self._host = host or name
        self._known_as = f"{known_as}.{_DOMAIN}"
        spec = template["spec"]
        (self._container,) = spec["containers"]
        self._annotations = {**template["metadata"].get("annotations", {}), **(annotations or {})}
        self._env = self._variables(env or {})
        number = len(kubelet.pods)
        self._folder = kubelet.folder / f"pod{number}"
        self.log = self._folder / "log"
        self._place = kubelet.network.attach()
        self.address = self._place.address
        self._write_files()
        cpus = int(self._container["resources"]["limits"]["cpu"])
        words = container.command(
            self._folder,
            self._container["command"],
            self._env,
            space=self._place.space,
            host=self._host,
            cpus=cpus,
            mounts=self._mounts(spec),
        )
        assert spec["terminationGracePeriodSeconds"] == _GRACE
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        kubelet.network.names.set(self._known_as, self.address)

    def _variables(self, more: Mapping[str, Any]) -> dict[str, str]:
        values = {**container.IMAGE_ENV, **_CLUSTER_ENV, "HOSTNAME": self._host}
        for source in self._container.get("envFrom", []):
            values |= self._kubelet.secrets[source["secretRef"]["name"]]
        entries = {entry["name"]: entry for entry in self._container.get("env", [])}
        for name, entry in {**entries, **more}.items():
            values[name] = entry if isinstance(entry, str) else self._value(entry)
        return values

    def _value(self, entry: Mapping[str, Any]) -> str:
        if "value" in entry:
            return str(entry["value"])
        match entry["valueFrom"]:
            case {"secretKeyRef": reference}:
                return self._kubelet.secrets[reference["name"]][reference["key"]]
            case {"fieldRef": {"fieldPath": path}}:
                match = re.fullmatch(r"metadata\.annotations\['(.+)'\]", path)
                return self._annotations[match[1]] if match else {"metadata.name": self.name}[path]
        raise AssertionError(f"no rule for {entry}")

    def _mounts(self, spec: Mapping[str, Any]) -> dict[str, Path]:
        claims = {
            volume["name"]: volume["persistentVolumeClaim"]["claimName"]
            for volume in spec.get("volumes", [])
        }
        return {
            mount["mountPath"]: self._kubelet.claim(claims[mount["name"]])
            for mount in self._container.get("volumeMounts", [])
        }

    def _write_files(self) -> None:
        etc = self._folder / "etc"
        (self._folder / "root").mkdir(parents=True)
        etc.mkdir()
        # The kubelet knows of a subdomain, not of other services that lead to the pod.
        in_subdomain = self._host != self.name
        own = f"{self._known_as} {self._host}" if in_subdomain else self._host
        (etc / "hosts").write_text(f"127.0.0.1\tlocalhost\n::1\tlocalhost\n{self.address}\t{own}\n")
        (etc / "resolv.conf").write_text(f"search {_SEARCH}\n{Network.resolver}")
        (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
        (etc / "passwd").write_text(_PASSWD)
        (etc / "group").write_text("root:x:0:\n")

    @property
    def first(self) -> psutil.Process:
        """Its process 1."""

        def found() -> psutil.Process | None:
            assert self.code is None, f"{self.name} has ended with {self.code}\n{self.text()}"
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(self._process.pid).children():
                    # Before, it is still what makes the container.
                    if child.environ().get("HOSTNAME") == self._host:
                        return child
            return None

        process: psutil.Process = wait(found, what=f"process 1 of {self.name}")
        return process

    @property
    def processes(self) -> list[psutil.Process]:
        """All its processes."""
        return [self.first, *self.first.children(recursive=True)]

    def kill(self) -> None:
        """Kills its largest process, as the kernel does where memory is short."""
        max(self.processes, key=lambda process: process.memory_info().rss).kill()

    def delete(self) -> None:
        """Tells it to end, and makes it end after its grace period."""
        if self.told is None and self.code is None:
            self.told = time.monotonic()
            # Where there is no process 1 yet, the container is not made.
            with contextlib.suppress(AssertionError):
                self.first.send_signal(signal.SIGTERM)

    def run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Runs another command in its container."""
        command = container.beside(self.first.pid, words, self._env)
        return subprocess.run(command, capture_output=True, text=True, timeout=SOON)

    def probe(self) -> subprocess.CompletedProcess[str]:
        """Runs the command of its liveness probe in it."""
        return self.run(self._container["livenessProbe"]["exec"]["command"])

    @property
    def code(self) -> int | None:
        """The exit code of its container; None while it runs."""
        code = self._process.poll()
        if code is None:
            late = self.told is not None and time.monotonic() > self.told + self._kubelet.grace
            if late:
                self._process.kill()
            return None
        if self.ended is None:
            self.ended = time.monotonic()
            self._kubelet.network.names.set(self._known_as, None)
            self._kubelet.network.detach(self._place)
        return code if code >= 0 else 128 - code

    def end(self) -> None:
        """Ends it now."""
        self._process.kill()
        self._process.wait()
        assert self.code is not None

    def find(self, pattern: str) -> list[str]:
        """The lines it has said that match."""
        return [line for line in self.lines if re.search(pattern, line)]

    @property
    def lines(self) -> list[str]:
        """The lines it has said."""
        return self.log.read_text(errors="replace").splitlines()

    def text(self) -> str:
        """All of it, for a message."""
        return f"-- {self.name} at {self.address}, code {self.code}\n" + "\n".join(self.lines)
