"""Keeps the list of tasks in a meeting, with the state and the problems of each."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

from tfdist.cluster.cluster import Cluster, Task
from tfdist.cluster.secret import job_secret
from tfdist.errors import ConfigError, PeerError, TfdistError
from tfdist.rendezvous.faults import Faults
from tfdist.rendezvous.messages import HOPELESS, MAX_PROBLEMS, MISSING, Hello, Problem, Status
from tfdist.rendezvous.signed_connection import derive_key
from tfdist.rendezvous.sockets import Endpoint

# For which the leader's last words count after it has gone: it may have given up just before.
_HEARD_SECONDS = 5.0


@dataclass
class Peer:
    """The state of another task.

    Attributes:
        task: The task.
        met: Whether it answered at its address with the expected name.
        reports: The nonces of the processes that report to this task, its leader, as this task.
        problem: The problem at its address; empty where it was not asked.
        endpoints: The addresses that its name resolved to.
        away: Whether it is known not to be there: its name does not resolve, or another answers.
        silent: Whether nothing there answered in time; the name may stand for another place now.
        running_since: The time, in seconds, since which TensorFlow listens on its port.
    """

    task: Task
    met: bool = False
    reports: set[str] = field(default_factory=set)
    problem: str = ""
    endpoints: list[Endpoint] = field(default_factory=list)
    away: bool = False
    silent: bool = False
    running_since: float | None = None


class Roster:
    """The tasks of a meeting, as one of them sees them.

    Args:
        cluster: The expected tasks, and this one.
        job: Text that all tasks must share.

    Attributes:
        leader: The name of the task that all others report to: the first one.
        follows: Whether this task reports to the leader at the moment.
    """

    def __init__(self, cluster: Cluster, job: str) -> None:
        tasks = cluster.tasks
        self.me = cluster.task
        self.name = str(cluster.task)
        self.names = [str(task) for task in tasks]
        self.leader = self.names[0]
        self.leads = self.name == self.leader
        self.peers = {str(task): Peer(task) for task in tasks if task != cluster.task}
        # Whoever knows cluster and flags could make the key, but for a secret.
        text = f"{cluster.fingerprint()}\n{job}".encode(errors="surrogateescape")
        self.key = derive_key("meeting", text, job_secret())
        self.nonce = secrets.token_hex(8)
        self.faults = Faults()
        self.strangers: set[str] = set()  # tasks that callers without the key claim to be
        self.listening = False
        self.follows = False
        self._heard = Status("")
        self._heard_at = float("-inf")

    def is_complete(self) -> bool:
        """Returns whether all tasks are there and have reported, without a fault."""
        arrived = all(peer.met and len(peer.reports) == 1 for peer in self.peers.values())
        return self.listening and arrived and not self.faults

    def hello(self, *, reports: bool = False) -> Hello:
        """Returns the message with this task's name."""
        return Hello(self.name, self.nonce, reports)

    def hear(self, answer: Status) -> None:
        """Records the problems that the leader reports."""
        self._heard, self._heard_at = answer, time.monotonic()

    def see_duplicate(self, name: str) -> None:
        """Notes that two processes claim to be one task."""
        self.faults.see("duplicate", name, f"two processes are {name}")

    def own_problems(self) -> tuple[Problem, ...]:
        """Returns what this task sees to be wrong with itself."""
        return tuple(p for p in self.faults.gravest().values() if p.task == self.name)

    def answer(self, state: str) -> Status:
        """Returns the leader's answer to a report."""
        return Status(state, tuple(self._problems()))

    def is_hopeless(self) -> bool:
        """Returns whether starting again would not help."""
        return any(problem.kind in HOPELESS for problem in self._problems())

    def has_faults(self) -> bool:
        """Returns whether something is wrong other than that tasks are missing."""
        return any(problem.kind != MISSING for problem in self._problems())

    def verdict(self, timeout: float) -> TfdistError:
        """Returns the error that names all problems, in one line.

        Args:
            timeout: The time limit of the meeting, in seconds.
        """
        problems = self._problems()
        named = [problem.text for problem in problems[:MAX_PROBLEMS]]
        more = len(problems) - len(named) + (0 if self._leader_is_gone() else self._heard.more)
        if more:
            named.append(f"and {more} more")
        if not named:
            named = ["all are there, but the start was not agreed in time"]
        start, end = f"rendezvous: {self.name} gave up", "; ".join(named)
        kinds = {problem.kind for problem in problems}
        if self.is_hopeless():
            advice = "give every task the same cluster and its own index"
            if "version" in kinds:
                advice = "install the same version everywhere"
            return ConfigError(f"{start}: {end}; {advice}")
        advice = "start the missing tasks, or wait longer"
        if kinds == {"taken"}:
            advice = "end that program, or give the task another port"
        return PeerError(f"{start} after {timeout:g} s: {end}; {advice}")

    def _leader_is_gone(self) -> bool:
        return not self.follows and time.monotonic() - self._heard_at > _HEARD_SECONDS

    def _problems(self) -> list[Problem]:
        """Returns what keeps the tasks from starting, the hopeless first, in the cluster's order.

        The leader's list counts where it is there; otherwise the task has looked for others itself.
        """
        found = self.faults.gravest()
        if not self.leads and not self._leader_is_gone():
            for problem in self._heard.problems:
                found.setdefault(problem.task, problem)
        else:
            for name, peer in self.peers.items():
                text = self._missing(name, peer)
                if text:
                    found.setdefault(name, Problem(MISSING, name, text))
        place = {name: number for number, name in enumerate(self.names)}
        return sorted(
            found.values(),
            key=lambda problem: (problem.kind not in HOPELESS, place.get(problem.task, 0)),
        )

    def _missing(self, name: str, peer: Peer) -> str:
        """Returns what a task has not done; "" where it has, or where this one need not know."""
        if peer.met:
            expects = self.leads and self.listening
            return f"{name} does not reach {self.name}" if expects and not peer.reports else ""
        if not peer.problem and not self.leads and name != self.leader:
            return ""
        text = f"{name} at {peer.task.address} {peer.problem or 'has not answered'}"
        if name in self.strangers:
            # Whoever called may be a stranger, or an old task that is about to end.
            text += ", and one of another cluster, job or secret called in its name"
        return text
