"""Keeps the list of tasks in a meeting, with the state and the faults of each."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import NamedTuple

from tfdist.cluster.cluster import Cluster, Task
from tfdist.cluster.secret import job_secret
from tfdist.errors import ConfigError, PeerError, TfdistError
from tfdist.rendezvous.faults import HOPELESS, KINDS, Faults
from tfdist.rendezvous.messages import Hello, decode
from tfdist.rendezvous.sockets import Connection, Endpoint

_MAX_NAMED = 8


class Introduction(NamedTuple):
    """What came of saying one's name to somebody.

    Attributes:
        line: What the other one answered, in bytes; empty where it did not.
        hello: The same as a message, None where it is none.
        is_proven: Whether the other one has the key of this job.
    """

    line: bytes
    hello: Hello | None = None
    is_proven: bool = False


@dataclass
class Peer:
    """The state of another task.

    Attributes:
        task: The task.
        met: Whether it answered with the expected name.
        problem: The problem, where it has not.
        missing: The tasks that it does not reach.
        endpoints: The addresses that its name resolved to.
        silent: Whether nothing there answered in time; the name may stand for another place now.
        running_since: The time, in seconds, since which TensorFlow listens on its port.
    """

    task: Task
    met: bool = False
    problem: str = "has not answered"
    missing: tuple[str, ...] = ()
    endpoints: list[Endpoint] = field(default_factory=list)
    silent: bool = False
    running_since: float | None = None


class Roster:
    """The tasks of a meeting, as one of them sees them.

    Args:
        cluster: The expected tasks, and this one.
        job: Text that all tasks must share.
    """

    def __init__(self, cluster: Cluster, job: str) -> None:
        self.me = cluster.task
        self.name = str(cluster.task)
        self.names = [str(task) for task in cluster.tasks]
        self.leader = self.names[0]
        self.peers = {str(t): Peer(t) for t in cluster.tasks if t != cluster.task}
        # Whoever knows cluster and flags could make the key, but for a secret.
        text = f"{cluster.fingerprint()}\n{job}\n".encode(errors="surrogateescape")
        self.key = hashlib.sha256(text + job_secret()).digest()
        self.nonce = secrets.token_hex(8)
        self.faults = Faults(self.names)
        self.strangers: set[str] = set()  # tasks that callers without the key claim to be
        self.listening = False

    def ready(self) -> bool:
        """Returns whether all tasks are there without a fault."""
        met = all(peer.met for peer in self.peers.values())
        return self.listening and met and not self.faults

    def hello(self, kind: str, challenge: str) -> Hello:
        """Returns the message with this task's name and the faults it sees."""
        missing = tuple(name for name, peer in self.peers.items() if not peer.met)
        faults = self.faults.own()
        return Hello(kind, self.name, self.nonce, challenge, faults=faults, missing=missing)

    async def introduce(self, connection: Connection, kind: str) -> Introduction:
        """Says this task's name, takes the answer, and proves that this task has the key."""
        reader, writer = connection
        challenge = draw_challenge()
        try:
            writer.write(Hello("hello", self.name, self.nonce, challenge).encode())
            line = await reader.readline()
            hello = decode(line, KINDS)
            if hello is None:
                return Introduction(line)
            own = self.hello(kind, challenge).signed(self.key, "caller", hello.challenge)
            writer.write(own.encode())
            proven = hello.is_proven(self.key, "answerer", challenge)
            return Introduction(line, hello, proven)
        except (OSError, ValueError):
            return Introduction(b"")
        except BaseException:
            writer.transport.abort()
            raise

    def take_notes(self, peer: Peer, hello: Hello) -> None:
        """Records the faults and missing tasks that a peer sees."""
        peer.missing = hello.missing
        self.faults.hear(hello)

    def see_duplicate(self) -> None:
        """Notes that another process claims to be this task."""
        self.faults.see("duplicate", self.name, f"two processes are {self.name}")

    def verdict(self, timeout: float) -> TfdistError:
        """Returns the error that names all faults, in one line.

        Args:
            timeout: The time limit of the meeting, in seconds.
        """
        faults = self.faults.gravest()
        problems = {name: text for name, (_, text) in faults.items()}
        hopeless = any(kind in HOPELESS for kind, _ in faults.values())
        for name, peer in self.peers.items():
            if name in problems or peer.met:
                continue
            problem = peer.problem
            if name in self.strangers:
                # Whoever called may be a stranger, or an old task that is about to end.
                problem += ", and one of another cluster, job or secret called in its name"
            problems[name] = f"{name} at {peer.task.address} {problem}"
        for name, peer in self.peers.items():
            if not problems and peer.missing:
                problems[name] = f"{name} does not reach {', '.join(peer.missing[:_MAX_NAMED])}"
        if not problems:
            problems[""] = "all are there, but the start was not agreed in time"
        named = [problems[name] for name in sorted(problems, key=self._order)]
        if len(named) > _MAX_NAMED:
            named[_MAX_NAMED:] = [f"and {len(named) - _MAX_NAMED} more"]
        text = f"rendezvous: {self.name} gave up after {timeout:g} s: {'; '.join(named)}"
        if hopeless:
            text = text.replace(f" after {timeout:g} s", "", 1)
            return ConfigError(f"{text}; give every task the same cluster and an index of its own")
        return PeerError(f"{text}; start the missing tasks, or wait longer")

    def _order(self, name: str) -> int:
        return self.names.index(name) if name in self.names else len(self.names)


def draw_challenge() -> str:
    """Returns a challenge for one connection."""
    return secrets.token_hex(16)
