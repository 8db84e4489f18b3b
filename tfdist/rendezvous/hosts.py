"""The launchers of several machines agree on the cluster that their tasks make.

Host 0 listens at an address that all know. The launcher of each other host tells it which ports
its tasks will have, and is told the cluster once all have come. A host's address is the one by
which host 0 is called from there, and host 0's own the one that all were given.

Lines of JSON, each with an HMAC under the job's secret (TFDIST_SECRET) of all that it says and of a
challenge that the other side has drawn for this connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import hmac
import ipaddress
import json
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
from tfdist.rendezvous.roster import draw_challenge
from tfdist.rendezvous.sockets import connect, listen, reason, resolve

_MAX_BYTES = 1 << 20  # the addresses of tens of thousands of tasks
_READ_SECONDS = 5.0
_AGAIN_SECONDS = 0.25
_PATIENCE_SECONDS = 2.0  # beyond the deadline, with host 0 that is there
_TAKEN_SECONDS = 5.0  # for a port to become free
_MAX_CALLERS = 128
_MAX_NAMED = 8
_PREFIX = "tfdist-hosts/1"
_ANOTHER_PROGRAM = "another program answers"
_REFUSED = "another TFDIST_SECRET, or none; give all hosts the same"


@dataclass(frozen=True)
class Machine:
    """One machine of a job, as its launcher describes it.

    Attributes:
        rank: its number among the hosts, from 0.
        hosts: how many there are.
        address: where host 0 listens, `host:port`.
        ports: of each role, the ports of the tasks on this machine.
    """

    rank: int
    hosts: int
    address: str
    ports: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Agreed:
    """What all launchers were told.

    Attributes:
        jobs: the addresses of each role, in the order of the hosts.
        first: of each role, the index of the first task on this machine.
    """

    jobs: Mapping[str, Sequence[str]]
    first: Mapping[str, int]


def agree(machine: Machine, timeout: float) -> Agreed:
    """Waits for the launchers of all hosts; returns the cluster.

    Args:
        machine: this one.
        timeout: seconds to wait, at most.

    Raises:
        PeerError: a host did not come, or host 0 cannot be reached.
        ConfigError: the hosts were given different numbers or secrets, or host 0's port is taken.
    """
    if machine.rank:
        return asyncio.run(_follow(machine, timeout))
    return asyncio.run(_Host0(machine, timeout).lead())


class _Host0:
    def __init__(self, machine: Machine, timeout: float) -> None:
        self._machine = machine
        self._timeout = timeout
        # Of each host that is there: its address, its ports, and the way to tell it.
        self._guests: dict[int, tuple[str, Mapping[str, Sequence[int]], _Line]] = {}
        self._strangers: set[str] = set()
        self._complete = asyncio.Event()

    async def lead(self) -> Agreed:
        """Returns the cluster once all have come, and tells them."""
        if self._machine.hosts == 1:
            jobs, first = self._cluster()
            return Agreed(jobs, first[0])
        listener = await self._listen()
        acceptor = Acceptor(listener, self._answer, limit=_MAX_BYTES, callers=_MAX_CALLERS)
        self._keep = acceptor.keep
        serving = asyncio.create_task(acceptor.serve())
        try:
            async with asyncio.timeout(self._timeout):
                await self._complete.wait()
            jobs, first = self._cluster()
            for rank, (_, _, line) in self._guests.items():
                await line.say({"jobs": jobs, "first": first[rank]})
            return Agreed(jobs, first[0])
        except TimeoutError:
            problem = self._missing()
            for _, _, line in self._guests.values():
                await line.say({"lost": problem})
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

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # An error here: the caller has gone, is too slow, or says what no launcher says.
        with contextlib.suppress(OSError, ValueError, TimeoutError, KeyError, TypeError):
            line = _Line(reader, writer, "host 0", "host")
            caller = _plain(writer.get_extra_info("peername")[0])
            async with asyncio.timeout(_READ_SECONDS):
                await line.exchange_challenges()
                said = await line.hear()
            if said is None:
                self._strangers.add(caller)
                await line.say({"refused": _REFUSED})
                return
            rank, hosts, ports = int(said["rank"]), int(said["hosts"]), said["ports"]
            problem = self._problem(rank, hosts)
            if problem:
                await line.say({"refused": problem})
                return
            self._keep()
            self._guests[rank] = (caller, _checked(ports), line)
            if len(self._guests) == self._machine.hosts - 1:
                self._complete.set()
            with contextlib.suppress(OSError):
                await reader.read(1)  # Nothing more is said: it has gone.
            if not self._complete.is_set():
                del self._guests[rank]

    def _problem(self, rank: int, hosts: int) -> str:
        if hosts != self._machine.hosts:
            return f"--num-hosts: {hosts} is given here, and {self._machine.hosts} on host 0"
        if rank in self._guests or not 0 < rank < hosts:
            where = f" at {self._guests[rank][0]}" if rank in self._guests else ""
            return f"--host-rank: there is a host {rank} already{where}; give each its own"
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
    """Tells host 0 of this machine, again and again; returns the cluster that it tells."""
    host, port = split_address(machine.address)
    problem = "does not answer"
    deadline = asyncio.get_running_loop().time() + timeout
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline) as limit:
            while True:
                limit.reschedule(deadline)
                try:
                    connection = await connect(await resolve(host, port), _MAX_BYTES)
                    problem = "is there, and waits for others"
                    limit.reschedule(deadline + _PATIENCE_SECONDS)  # It knows who is missing.
                    return await _call(machine, *connection)
                except OSError as error:
                    problem = f"cannot be reached ({reason(error)})"
                await asyncio.sleep(_AGAIN_SECONDS)
    raise PeerError(
        f"rendezvous: host {machine.rank} gave up after {timeout:g} s: host 0 at "
        f"{machine.address} {problem}; start it, or set TFDIST_WAIT"
    )


async def _call(
    machine: Machine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Agreed:
    try:
        line = _Line(reader, writer, "host", "host 0")
        async with asyncio.timeout(_READ_SECONDS):
            await line.exchange_challenges()
        ports = {role: list(ports) for role, ports in machine.ports.items()}
        await line.say({"rank": machine.rank, "hosts": machine.hosts, "ports": ports})
        said = await line.hear()
    except TimeoutError:  # In saying hello.
        raise ConnectionError(_ANOTHER_PROGRAM) from None
    finally:
        writer.transport.abort()
    if said is None:
        raise ConfigError(f"rendezvous: host 0 at {machine.address} has {_REFUSED}")
    if "jobs" in said:
        return Agreed(said["jobs"], said["first"])
    kind: type[TfdistError] = PeerError if "lost" in said else ConfigError
    raise kind(f"rendezvous: host 0 at {machine.address} says: {next(iter(said.values()))}")


class _Line:
    """A connection whose two ends prove what they say.

    Args:
        reader: Where the other end is heard.
        writer: Where it is told.
        own: Which end this is.
        other: Which one the other is.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, own: str, other: str
    ) -> None:
        self._reader, self._writer = reader, writer
        self._own, self._other = own, other
        self._drawn = draw_challenge()
        self._given = ""

    async def exchange_challenges(self) -> None:
        """Gives and takes what proofs must cover.

        Raises:
            ConnectionError: The other end has gone, or is another program.
        """
        self._writer.write(f"{_PREFIX} {self._drawn}\n".encode())
        words = (await self._read()).split()
        if len(words) != 2 or words[0].decode("ascii", "replace") != _PREFIX:
            raise ConnectionError(_ANOTHER_PROGRAM)
        self._given = words[1].decode("ascii", "replace")

    async def say(self, said: Mapping[str, Any]) -> None:
        """Tells the other end, if it is there."""
        text = json.dumps(said)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_READ_SECONDS):
                proof = _proof(text, self._own, self._given)
                self._writer.write(json.dumps([text, proof]).encode() + b"\n")
                await self._writer.drain()

    async def hear(self) -> dict[str, Any] | None:
        """Returns what the other end says; None where it has another secret.

        Raises:
            ConnectionError: It has gone, or is another program.
        """
        line = await self._read()
        try:
            text, proof = json.loads(line)
            if not hmac.compare_digest(proof, _proof(text, self._other, self._drawn)):
                return None
            said: dict[str, Any] = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            raise ConnectionError(_ANOTHER_PROGRAM) from None
        return said

    async def _read(self) -> bytes:
        try:
            line = await self._reader.readline()
        except ValueError:  # It is too long.
            raise ConnectionError(_ANOTHER_PROGRAM) from None
        if not line:
            raise ConnectionResetError(errno.ECONNRESET, "")
        return line


def _proof(text: str, side: str, challenge: str) -> str:
    key = hashlib.sha256(b"tfdist hosts\n" + job_secret()).digest()
    return hmac.new(key, f"{side} {challenge} {text}".encode(), hashlib.sha256).hexdigest()


def _checked(ports: Any) -> dict[str, list[int]]:
    """Returns what another host says of its ports.

    Raises:
        ValueError: They are none.
    """
    if not isinstance(ports, dict) or not set(ports) <= set(ROLES):
        raise ValueError(ports)
    return {role: [int(port) for port in ports[role]] for role in ports}


def _plain(address: str) -> str:
    """Returns an IPv4 address that came to an IPv6 socket as IPv4."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped) if mapped is not None else address
