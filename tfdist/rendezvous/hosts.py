"""The launchers of several machines agree on the cluster that their tasks make.

Host 0 listens at an address that all know. The launcher of each other host reports which ports
its tasks will have, and is given the cluster once all have come. A host's address is the one by
which host 0 is called from there, and host 0's own the one that all were given. Both ends prove
that they have the job's secret (TFDIST_SECRET).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.cluster.address import join_address, split_address
from tfdist.cluster.secret import job_secret
from tfdist.cluster.spec import ROLES
from tfdist.errors import ConfigError, PeerError, TfdistError
from tfdist.rendezvous.acceptor import Acceptor
from tfdist.rendezvous.signed_connection import (
    CALLER,
    LISTENER,
    AnotherProgramError,
    SignedConnection,
    derive_key,
)
from tfdist.rendezvous.sockets import connect, listen, reason, resolve

_MAX_BYTES = 1 << 20  # the addresses of tens of thousands of tasks
_READ_SECONDS = 5.0
_AGAIN_SECONDS = 0.25
_PATIENCE_SECONDS = 2.0  # beyond the deadline, where host 0 has answered
_TAKEN_SECONDS = 5.0  # for a port to become free
_MAX_CALLERS = 128
_MAX_NAMED = 8
_REFUSED = "another TFDIST_SECRET, or none; give all hosts the same"


@dataclass(frozen=True)
class Machine:
    """One machine of a job, as its launcher describes it.

    Attributes:
        rank: Its number among the hosts, from 0.
        hosts: How many there are.
        address: Where host 0 listens, `host:port`.
        ports: Of each role, the ports of the tasks on this machine.
    """

    rank: int
    hosts: int
    address: str
    ports: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Agreed:
    """What the launchers have agreed on.

    Attributes:
        jobs: The addresses of each role, in the order of the hosts.
        first: Of each role, the index of the first task on this machine.
    """

    jobs: Mapping[str, Sequence[str]]
    first: Mapping[str, int]


def agree(machine: Machine, timeout: float) -> Agreed:
    """Waits for the launchers of all hosts; returns the cluster.

    Args:
        machine: This one.
        timeout: Seconds to wait, at most.

    Raises:
        PeerError: A host did not come, or host 0 cannot be reached.
        ConfigError: The hosts were given different numbers or secrets, or host 0's port is taken.
    """
    if machine.rank:
        return asyncio.run(_follow(machine, timeout))
    return asyncio.run(_Host0(machine, timeout).lead())


class _Host0:
    def __init__(self, machine: Machine, timeout: float) -> None:
        self._machine = machine
        self._timeout = timeout
        # Of each host that has come: its address, its ports, and the connection to it.
        self._guests: dict[int, tuple[str, Mapping[str, Sequence[int]], SignedConnection]] = {}
        self._strangers: set[str] = set()
        self._complete = asyncio.Event()

    async def lead(self) -> Agreed:
        """Returns the cluster once all have come, and hands it to them."""
        if self._machine.hosts == 1:
            jobs, first = self._cluster()
            return Agreed(jobs, first[0])
        listener = await self._listen()
        acceptor = Acceptor(listener, self._answer, callers=_MAX_CALLERS)
        self._keep = acceptor.keep
        serving = asyncio.create_task(acceptor.serve())
        try:
            async with asyncio.timeout(self._timeout):
                await self._complete.wait()
            jobs, first = self._cluster()
            for rank, (_, _, connection) in self._guests.items():
                await _send(connection, {"jobs": jobs, "first": first[rank]})
            return Agreed(jobs, first[0])
        except TimeoutError:
            problem = self._missing()
            for _, _, connection in self._guests.values():
                await _send(connection, {"lost": problem})
            raise PeerError(f"rendezvous: host 0 gave up: {problem}") from None
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def _listen(self) -> socket.socket:
        host, port = split_address(self._machine.address)
        until = time.monotonic() + _TAKEN_SECONDS
        while True:
            try:
                return await listen(host, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                    raise ConfigError(
                        f"--rendezvous: port {port} cannot be used on host 0 ({reason(error)}); "
                        "give another one to all hosts"
                    ) from None
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _answer(self, client: socket.socket) -> None:
        # An error here: the caller has gone, is too slow, or its message is malformed.
        with contextlib.suppress(OSError, ValueError, TimeoutError, KeyError, TypeError):
            caller = _plain(client.getpeername()[0])
            connection = _sign(client, LISTENER)
            async with asyncio.timeout(_READ_SECONDS):
                await connection.greet()
                report, is_proven = await connection.receive()
            if not is_proven:
                self._strangers.add(caller)
                await _send(connection, {"refused": _REFUSED})
                return
            rank, hosts, ports = int(report["rank"]), int(report["hosts"]), report["ports"]
            problem = self._problem(rank, hosts)
            if problem:
                await _send(connection, {"refused": problem})
                return
            self._keep()
            self._guests[rank] = (caller, _checked(ports), connection)
            if len(self._guests) == self._machine.hosts - 1:
                self._complete.set()
            with contextlib.suppress(OSError):
                await connection.receive()  # It sends nothing more: it has gone.
            if not self._complete.is_set():
                del self._guests[rank]

    def _problem(self, rank: int, hosts: int) -> str:
        if hosts != self._machine.hosts:
            return f"--num-hosts: {hosts} is given here, and {self._machine.hosts} on host 0"
        if rank in self._guests or not 0 < rank < hosts:
            where = f" at {self._guests[rank][0]}" if rank in self._guests else ""
            return f"--host-rank: host {rank} has come already{where}; give each its own number"
        return ""

    def _missing(self) -> str:
        away = [f"{n}" for n in range(1, self._machine.hosts) if n not in self._guests]
        if len(away) > _MAX_NAMED:
            away[_MAX_NAMED:] = [f"{len(away) - _MAX_NAMED} more"]
        named = f"host{'s' if len(away) > 1 else ''} {', '.join(away)}"
        text = f"{named} of {self._machine.hosts} did not come to {self._machine.address}"
        if self._strangers:
            callers = ", ".join(sorted(self._strangers)[:_MAX_NAMED])
            text += f", where {callers} came with another TFDIST_SECRET"
        return f"{text} within {self._timeout:g} s; start what is missing, or set TFDIST_WAIT"

    def _cluster(self) -> tuple[dict[str, list[str]], list[dict[str, int]]]:
        jobs: dict[str, list[str]] = {}
        first: list[dict[str, int]] = []
        own, _ = split_address(self._machine.address)
        for rank in range(self._machine.hosts):
            host, ports = (own, self._machine.ports) if rank == 0 else self._guests[rank][:2]
            first.append({role: len(jobs.get(role, ())) for role in ports})
            for role in ports:
                jobs.setdefault(role, []).extend(join_address(host, port) for port in ports[role])
        return {role: jobs[role] for role in ROLES if role in jobs}, first


async def _follow(machine: Machine, timeout: float) -> Agreed:
    """Reports this machine to host 0, again and again; returns the cluster that it is given."""
    host, port = split_address(machine.address)
    problem = "does not answer"
    deadline = asyncio.get_running_loop().time() + timeout
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline) as limit:
            while True:
                limit.reschedule(deadline)
                try:
                    with await connect(await resolve(host, port)) as client:
                        problem = "has answered, and waits for others"
                        limit.reschedule(deadline + _PATIENCE_SECONDS)  # It knows who is missing.
                        return await _call(machine, _sign(client, CALLER))
                except OSError as error:
                    problem = f"cannot be reached ({reason(error)})"
                await asyncio.sleep(_AGAIN_SECONDS)
    raise PeerError(
        f"rendezvous: host {machine.rank} gave up after {timeout:g} s: host 0 at "
        f"{machine.address} {problem}; start it, or set TFDIST_WAIT"
    )


async def _call(machine: Machine, connection: SignedConnection) -> Agreed:
    try:
        async with asyncio.timeout(_READ_SECONDS):
            await connection.greet()
    except TimeoutError:
        raise AnotherProgramError from None
    ports = {role: list(ports) for role, ports in machine.ports.items()}
    await _send(connection, {"rank": machine.rank, "hosts": machine.hosts, "ports": ports})
    answer, is_proven = await connection.receive()
    if not is_proven:
        raise ConfigError(f"rendezvous: host 0 at {machine.address} has {_REFUSED}")
    if "jobs" in answer:
        return Agreed(answer["jobs"], answer["first"])
    kind: type[TfdistError] = PeerError if "lost" in answer else ConfigError
    problem = next(iter(answer.values()))
    raise kind(f"rendezvous: host 0 at {machine.address}: {problem}")


def _sign(client: socket.socket, end: bytes) -> SignedConnection:
    return SignedConnection(client, derive_key("hosts", job_secret()), end, most_bytes=_MAX_BYTES)


async def _send(connection: SignedConnection, message: Mapping[str, Any]) -> None:
    """Sends a message, if the other end still reads it."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_READ_SECONDS):
            await connection.send(message)


def _checked(ports: Any) -> dict[str, list[int]]:
    """Returns the ports that another host has sent.

    Raises:
        ValueError: They are not ports.
    """
    if not isinstance(ports, dict) or not set(ports) <= set(ROLES):
        raise ValueError(ports)
    return {role: [int(port) for port in ports[role]] for role in ports}


def _plain(address: str) -> str:
    """Returns an IPv4 address that came to an IPv6 socket as IPv4."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped) if mapped is not None else address
