"""Two machines with an sshd each: network namespaces with addresses of their own, and a wire.

The file system is shared. Whatever runs in the namespaces is the lab's: it is found by them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

SOON = 60.0
_PORT = 22022
_SSHD = """
ListenAddress {address}:{port}
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/authorized
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
"""
_SSH = """
Host *
  Port {port}
  IdentityFile {folder}/{key}
  IdentitiesOnly yes
  IdentityAgent none
  StrictHostKeyChecking no
  UserKnownHostsFile {folder}/known
  LogLevel ERROR
"""


def wait(condition: Callable[[], object], what: str = "it") -> None:
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


class TwoHosts:
    """Two machines that know each other by their addresses.

    Attributes:
        addresses: of the first, from which jobs are launched, and of the second.
        folder: Files, which both see.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tfdist-hosts-"))
        # Rows of tests run at once: each has its own network.
        number = os.getpid()
        network = f"10.{128 + (number >> 8) % 64}.{number % 256}"
        self.addresses = (f"{network}.1", f"{network}.2")
        self._spaces = (f"{self.folder.name}-a", f"{self.folder.name}-b")
        self._daemons: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Starts all of it, or skips the test where that cannot be done."""
        if os.geteuid() != 0:
            pytest.skip("makes network namespaces, which needs root")
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        sshd = shutil.which("sshd", path=path)
        if sshd is None or shutil.which("ip", path=path) is None:
            pytest.skip("no sshd or no ip; Debian: apt-get install openssh-server iproute2")
        if not self._wire():
            pytest.skip("network namespaces cannot be made here")
        for key in ("host", "key", "stranger"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key]
            subprocess.run(command, check=True)
        shutil.copy(self.folder / "key.pub", self.folder / "authorized")
        for key in ("key", "stranger"):
            text = _SSH.format(port=_PORT, folder=self.folder, key=key)
            (self.folder / f"ssh-{key}").write_text(text)
        self._sshd = sshd
        os.makedirs("/run/sshd", exist_ok=True)
        for host in (0, 1):
            self.power_on(host)
        for address in self.addresses:
            probe = self.command(0, *self.ssh().split(), address, "true")
            wait(
                lambda probe=probe: subprocess.run(probe, capture_output=True).returncode == 0,
                "sshd",
            )

    def _wire(self) -> bool:
        first, second = self._spaces
        commands = [f"ip netns add {first}", f"ip netns add {second}"]
        commands.append(f"ip link add wire netns {first} type veth peer wire netns {second}")
        for address, space in zip(self.addresses, self._spaces, strict=True):
            commands += [
                f"ip -n {space} addr add {address}/24 dev wire",
                f"ip -n {space} link set wire up",
                f"ip -n {space} link set lo up",
            ]
        return not any(subprocess.run(c.split(), capture_output=True).returncode for c in commands)

    def ssh(self, key: str = "key") -> str:
        """The ssh that logs in to both."""
        return f"ssh -F {self.folder}/ssh-{key}"

    def command(self, host: int, *words: str) -> list[str]:
        """A command that runs on one of them, without ssh."""
        return ["ip", "netns", "exec", self._spaces[host], *words]

    def cut(self) -> None:
        """Cuts the wire."""
        subprocess.run(["ip", "-n", self._spaces[0], "link", "set", "wire", "down"], check=True)

    def mend(self) -> None:
        """Mends it."""
        subprocess.run(["ip", "-n", self._spaces[0], "link", "set", "wire", "up"], check=True)

    def power_on(self, host: int) -> None:
        """Starts one of them, whose sshd then answers soon."""
        address, space = self.addresses[host], self._spaces[host]
        config = self.folder / f"sshd-{space}"
        config.write_text(_SSHD.format(address=address, port=_PORT, folder=self.folder))
        words = (self._sshd, "-D", "-f", str(config), "-E", str(self.folder / f"log-{space}"))
        self._daemons[host] = subprocess.Popen(self.command(host, *words), stdin=subprocess.DEVNULL)

    def power_off(self, host: int) -> None:
        """Kills all that runs on one of them."""
        daemon = self._daemons.pop(host)
        daemon.kill()
        daemon.wait()
        for process in self.processes(host):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def processes(self, host: int) -> list[psutil.Process]:
        """What runs on one of them next to its sshd."""
        space = os.stat(f"/run/netns/{self._spaces[host]}").st_ino
        daemons = {daemon.pid for daemon in self._daemons.values()}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                own = os.stat(f"/proc/{process.pid}/ns/net").st_ino == space
                if own and process.pid not in daemons:
                    found.append(process)
        return found

    def left(self) -> list[psutil.Process]:
        """What runs on both of them."""
        return self.processes(0) + self.processes(1)

    def close(self) -> None:
        """Ends all of it, and sees that nothing is left."""
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        left = []
        for host, space in enumerate(self._spaces):
            if os.path.exists(f"/run/netns/{space}"):
                left += self.processes(host)
                for process in self.processes(host):
                    process.kill()
                subprocess.run(["ip", "netns", "delete", space], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not left, f"processes were left: {left}"
