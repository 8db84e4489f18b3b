"""Measures how soon a worker that has lost its peer ends, and whether it names the peer."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Sequence

from tfdist.benchmark.peers.contenders import Contender
from tfdist.benchmark.peers.hosts import LOOPBACK
from tfdist.benchmark.peers.measure import OUTPUT, started
from tfdist.errors import EXIT_PEER_LOST, TfdistError


@dataclasses.dataclass(frozen=True)
class Loss:
    """The end of a worker whose peer was killed.

    Attributes:
        seconds: From the kill to the end of the process.
        code: Its exit code.
        names_peer: Whether its last line names the peer.
    """

    seconds: float
    code: int
    names_peer: bool


def measure(
    times: int, transport: str, *, patience: float = 120.0, say: Callable[[str], None] = print
) -> list[Loss]:
    """Kills one of two workers in the midst of training, again and again; there is no launcher.

    Args:
        times: How often.
        transport: For the Trainer.
        patience: Seconds after which a survivor is taken to hang.
        say: Receives a line each time.

    Raises:
        TfdistError: The workers did not begin to train, or a survivor did not end.
    """
    contender = Contender("a lost peer", "until_lost", {"worker": 2})
    work = {
        "program": "until_lost",
        "options": {"transport": transport},
    }
    found = []
    for number in range(times):
        with started(contender, work, None, [LOOPBACK]) as (processes, folder):
            deadline = time.monotonic() + patience
            while not (folder / OUTPUT).exists():
                if time.monotonic() > deadline or any(p.poll() for p in processes.values()):
                    log = (folder / "worker-0.log").read_text(errors="replace")
                    raise TfdistError(f"bench loss: the workers did not train\n{log[-2000:]}")
                time.sleep(0.05)
            time.sleep(random.uniform(0.0, 1.0))  # Anywhere in a step.
            processes["worker-1"].kill()
            began = time.monotonic()
            while processes["worker-0"].poll() is None:
                if time.monotonic() > began + patience:
                    raise TfdistError(f"bench loss: the survivor still runs after {patience:g} s")
                time.sleep(0.005)
            seconds = time.monotonic() - began
            last = (folder / "worker-0.log").read_text(errors="replace").strip().splitlines()[-1]
            code = processes["worker-0"].returncode
            found.append(Loss(seconds, code, "worker/1" in last))
        say(f"{number + 1}/{times}  {seconds:.2f} s, exit code {code}: {last}")
    return found


def summary(losses: Sequence[Loss], limit: float = 2.0) -> str:
    """Says how many were named, with the right exit code, within `limit` seconds."""
    right = [each for each in losses if each.names_peer and each.code == EXIT_PEER_LOST]
    seconds = sorted(each.seconds for each in losses)
    soon = sum(each.seconds < limit for each in right)
    return (
        f"named, with exit code {EXIT_PEER_LOST}, in less than {limit:g} s: {soon} of "
        f"{len(losses)}; median {seconds[len(seconds) // 2]:.2f} s, longest {seconds[-1]:.2f} s"
    )
