"""The network of pods: a namespace each, routes between them, and the names of the cluster.

The routes lead through a namespace of their own, as through the nodes of a cluster: nothing is
added to the machine's own network, so runs beside each other cannot collide. Packets to an address
that no pod has any more vanish there: nobody answers.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from typing import NamedTuple

import pytest

from tests.pods.names import Names

PROGRAMS = ("ip", "nsenter", "setpriv", "unshare")
# As Calico has it: the way out of each pod, and what answers its questions for names.
_GATEWAY = "169.254.1.1"
_ALL = "10.244.0.0/16"
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET


class Place(NamedTuple):
    """Where a pod is.

    Attributes:
        space: The name of its network namespace.
        address: Its address.
        wire: The router's end of its wire.
    """

    space: str
    address: str
    wire: str


class Network:
    """The network of one cluster.

    Attributes:
        names: Its DNS.
        resolver: The resolv.conf of its pods, but for the search path.
    """

    resolver = f"nameserver {_GATEWAY}\noptions ndots:5\n"

    def __init__(self) -> None:
        self.names = Names()
        self._router = f"tfdist-pods-{os.getpid()}"
        self._places: list[Place] = []
        self._count = 0

    def start(self) -> None:
        """Makes it, or skips the test where that cannot be done."""
        if os.geteuid() != 0:
            pytest.skip("makes namespaces, which needs root")
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        if missing:
            pytest.skip(f"no {missing[0]}; Debian: apt-get install iproute2 util-linux")
        router = self._router
        commands = [
            f"ip netns add {router}",
            f"ip -n {router} link set lo up",
            f"ip -n {router} addr add {_GATEWAY}/32 dev lo",
            f"ip -n {router} route add blackhole {_ALL}",
            f"ip netns exec {router} sysctl -q net.ipv4.ip_forward=1",
        ]
        if any(subprocess.run(one.split(), capture_output=True).returncode for one in commands):
            pytest.skip("network namespaces cannot be made here")
        asked = _socket_in(router)
        asked.bind((_GATEWAY, 53))
        self.names.serve(asked)

    def attach(self) -> Place:
        """Makes the network namespace of a pod, with an address that none had before."""
        self._count += 1
        place = Place(
            f"{self._router}-{self._count}",
            f"10.244.{self._count >> 8}.{self._count % 256}",
            f"pod{self._count}",
        )
        space, address, wire = place
        self._places.append(place)
        commands = [
            f"ip netns add {space}",
            f"ip link add eth0 netns {space} type veth peer name {wire} netns {self._router}",
            f"ip -n {space} link set lo up",
            f"ip -n {space} addr add {address}/32 dev eth0",
            f"ip -n {space} link set eth0 up",
            f"ip -n {space} route add {_GATEWAY} dev eth0 scope link",
            f"ip -n {space} route add default via {_GATEWAY}",
            f"ip -n {self._router} link set {wire} up",
            f"ip -n {self._router} route add {address}/32 dev {wire}",
        ]
        for command in commands:
            subprocess.run(command.split(), check=True, capture_output=True)
        return place

    def detach(self, place: Place) -> None:
        """Takes a pod's network away."""
        self._places.remove(place)
        for command in (
            f"ip -n {self._router} link del {place.wire}",
            f"ip netns del {place.space}",
        ):
            subprocess.run(command.split(), check=True, capture_output=True)

    def answers(self, address: str) -> str:
        """What comes of a call to a port of an address that nobody listens on."""
        probe = "import socket, sys; socket.create_connection((sys.argv[1], 1), timeout=2)"
        first = self._places[0].space
        words = ["ip", "netns", "exec", first, "python3", "-c", probe, address]
        done = subprocess.run(words, capture_output=True, text=True)
        return done.stderr.splitlines()[-1]

    def close(self) -> None:
        """Takes all of it away."""
        self.names.close()
        for place in list(self._places):
            self.detach(place)
        if os.path.exists(f"/run/netns/{self._router}"):
            subprocess.run(["ip", "netns", "del", self._router], check=True)


def _socket_in(space: str) -> socket.socket:
    """A datagram socket of a network namespace."""
    made: list[socket.socket] = []

    def make() -> None:
        with open(f"/run/netns/{space}") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")
        made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

    # A thread's network namespace is its own.
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]
