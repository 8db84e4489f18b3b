"""Makes two hosts of one machine: network namespaces, joined by a link of a stated speed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator

from tfdist.benchmark.processes import NetworkHost
from tfdist.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class LinkSpeed:
    """The speed of a link between two hosts, the same both ways.

    Attributes:
        rate: Bits a second, as `tc` takes them.
        delay: The delay one way, as `tc` takes it. Kernels without `sch_netem` add none.
    """

    rate: str
    delay: str


@contextlib.contextmanager
def two_hosts(link: LinkSpeed) -> Iterator[list[NetworkHost]]:
    """Makes two hosts, for the duration of the block.

    Raises:
        ConfigError: This user cannot make network namespaces here.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        raise ConfigError(
            "benchmarks peers: a slow link needs root and iproute2 (ip, tc); run it as root, or "
            "choose other comparisons with --only"
        )
    names = [f"tfdist-{os.getpid()}-{side}" for side in "ab"]
    interfaces = ["link-a", "link-b"]
    hosts = []
    try:
        for name in names:
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        _run(
            *("ip", "-n", names[0], "link", "add", interfaces[0], "type", "veth"),
            *("peer", "name", interfaces[1], "netns", names[1]),
        )
        for index, (name, interface) in enumerate(zip(names, interfaces, strict=True)):
            address = f"10.77.0.{index + 1}"
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", interface)
            _run("ip", "-n", name, "link", "set", interface, "up")
            discipline = ["tc", "-n", name, "qdisc", "add", "dev", interface, "root"]
            if has_delays():
                _run(*discipline, *("netem", "delay", link.delay, "rate", link.rate))
            else:
                burst = ("burst", "128kb", "latency", "50ms")
                _run(*discipline, "tbf", "rate", link.rate, *burst)
            hosts.append(NetworkHost(address, interface, ("ip", "netns", "exec", name)))
        yield hosts
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@functools.cache
def has_delays() -> bool:
    """Returns whether this machine's kernel can delay packets; needs root."""
    name = f"tfdist-{os.getpid()}-try"
    try:
        _run("ip", "netns", "add", name)
        command = ["tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
        return subprocess.run(command, capture_output=True).returncode == 0
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"benchmarks peers: {' '.join(command)}: {done.stderr.strip()}")
