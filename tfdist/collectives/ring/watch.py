"""Watches the neighbours in a ring, and tells the others when one is lost.

Each pair of neighbours has a second connection, for news. A thread reads those of both sides all
the time: their end is the end of the neighbour, also while this worker computes. What it learns it
passes on to the other side before it closes, so that every worker names the one that was lost
first and not the one that only passed it on. Then it shuts the connections of the data down, which
wakes whoever waits in a collective.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tfdist.collectives.ring.verdict import INTERRUPTED, LEFT, LOST, RingError, Verdict, decode
from tfdist.runtime.log import LOGGER

# How often a collective's age is looked at, in seconds.
_TICK = 2.0
# How often, while a signal waits to be heard.
_SIGNAL_TICK = 0.05
# How long one that sees the end of a neighbour's data waits for the news of why.
_PATIENCE = 1.0
_LONGEST_LINE = 1024


class Interrupts(Protocol):
    """Signals that Python has been sent and its main thread cannot act on."""

    def fileno(self) -> int:
        """A descriptor that is ready to be read when a signal came."""

    def pending(self) -> bool:
        """Whether one came that is to end what goes on, and the main thread is held since."""

    def expecting(self) -> bool:
        """Whether it may come to that: `pending` is to be asked again soon."""


@dataclass
class Neighbour:
    """One side of the ring.

    Attributes:
        rank: The worker there.
        news: The connection for news.
        waits: The number of the latest collective in which it said that it waits.
        ended: Why it will say no more; "" while it may.
    """

    rank: int
    news: socket.socket
    waits: int = -1
    ended: str = ""
    partial: bytes = field(default=b"", repr=False)


class Watch:
    """The thread, and what it knows.

    Args:
        rank: This worker.
        names: What the workers are called, by rank.
        following: The next worker.
        previous: The previous worker.
        data: The connections to shut down when the ring breaks.
        warn_seconds: After how long in one collective a line says who is waited for.
        stall_seconds: After how long a worker that is alive and silent counts as lost.
        interrupts: What notices Ctrl-C while TensorFlow holds the main thread, if anything does.
    """

    def __init__(
        self,
        rank: int,
        names: Sequence[str],
        following: Neighbour,
        previous: Neighbour,
        data: Sequence[socket.socket],
        *,
        warn_seconds: float,
        stall_seconds: float,
        interrupts: Interrupts | None = None,
    ) -> None:
        self.verdict: Verdict | None = None
        self.closed = False
        # The collective that goes on: its number, since when, and whether it waits for the next
        # worker to take something, else for the previous one to give something.
        self.number = 0
        self.since: float | None = None
        self.waits_for_next = False
        self._rank = rank
        self._names = names
        self._sides = (following, previous)
        self._data = data
        self._warn_seconds = warn_seconds
        self._stall_seconds = stall_seconds
        self._interrupts = interrupts
        self._warned = self._told = -1
        self._lock = threading.Lock()
        self._known = threading.Event()
        self._wake, self._woken = socket.socketpair()
        for side in self._sides:
            side.news.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="tfdist ring", daemon=True)
        self._thread.start()

    def error(self) -> RingError:
        """The error that says why the ring is broken; call it where it is."""
        verdict = self.verdict or Verdict(LEFT, self._rank, "the ring is closed here")
        return verdict.error(self._names[verdict.rank])

    def failed(self, following: bool, reason: str) -> RingError:
        """The error for a connection for data that ended, once it is known why it did.

        Args:
            following: Whether it is the one to the next worker.
            reason: What was seen of it.
        """
        if not self._known.wait(_PATIENCE):
            side = self._sides[0 if following else 1]
            if side.ended:
                self.break_off(Verdict(LEFT, side.rank, side.ended))
            else:
                self.break_off(Verdict(LOST, side.rank, reason))
        return self.error()

    def break_off(self, verdict: Verdict) -> None:
        """Breaks the ring, unless it is broken, and tells both neighbours why."""
        with self._lock:
            if self.verdict is not None or self.closed:
                return
            self.verdict = verdict
            self._tell(verdict.encode())
        self._known.set()
        self._shut(self._data)
        self._wake_up()

    def close(self, news: Verdict) -> None:
        """Leaves the ring, with news for the neighbours; no collective may go on here."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            if self.verdict is None:
                self._tell(news.encode())
        self._known.set()
        if self.since is not None:
            self._shut(self._data)
        self._wake_up()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        for connection in (*self._data, *(side.news for side in self._sides)):
            connection.close()
        self._wake.close()
        self._woken.close()

    # The functions below run in the thread.

    def _run(self) -> None:
        while not self.closed and self.verdict is None:
            expecting = self._interrupts is not None and self._interrupts.expecting()
            open_ones = [side for side in self._sides if not side.ended]
            descriptors: list[int] = [side.news.fileno() for side in open_ones]
            if self._interrupts is not None:
                descriptors.append(self._interrupts.fileno())
            timeout = _SIGNAL_TICK if expecting else _TICK
            ready = _readable([self._woken.fileno(), *descriptors], timeout)
            for side in open_ones:
                if side.news.fileno() in ready:
                    self._read(side)
            held = self._interrupts is not None and self._interrupts.pending()
            if held and self.since is not None:
                self.break_off(Verdict(INTERRUPTED, self._rank, "by a signal"))
            self._look_at_age()

    def _read(self, side: Neighbour) -> None:
        try:
            data = side.news.recv(4096)
        except BlockingIOError:
            return
        except OSError as error:
            self.break_off(Verdict(LOST, side.rank, error.strerror or str(error)))
            return
        if not data:
            self.break_off(Verdict(LOST, side.rank, "it closed the connection"))
            return
        *lines, side.partial = (side.partial + data)[-_LONGEST_LINE:].split(b"\n")
        for line in lines:
            self._take(side, line)

    def _take(self, side: Neighbour, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        if word == b"waiting" and rest.isdigit():
            side.waits = int(rest)
            return
        verdict = decode(line, len(self._names))
        if verdict is None:
            return
        if verdict.kind == LEFT and verdict.rank == side.rank:
            # What it sent before may still be needed; whoever needs more will see the end.
            side.ended = verdict.reason
        else:
            self.break_off(verdict)

    def _look_at_age(self) -> None:
        since, number = self.since, self.number
        if since is None:
            return
        age = time.monotonic() - since
        if age < _TICK / 2:
            return
        if self._told != number:
            self._told = number
            with self._lock:
                self._tell(b"waiting %d" % number)
        side = self._sides[0 if self.waits_for_next else 1]
        name, waits_too = self._names[side.rank], side.waits >= number
        if age > self._warn_seconds and self._warned != number:
            self._warned = number
            more = ", which waits for another" if waits_too else ", which has not come to it"
            LOGGER.warning("%s: has waited %.0f s for %s%s", self._own, age, name, more)
        # Whoever waits too knows better who keeps all waiting, and is given the time to say so.
        if age > self._stall_seconds * (2 if waits_too else 1):
            reason = f"alive, and silent for {age:.0f} s"
            self.break_off(Verdict(LOST, side.rank, reason))

    @property
    def _own(self) -> str:
        return self._names[self._rank]

    def _tell(self, line: bytes) -> None:
        for side in self._sides:
            with contextlib.suppress(OSError):
                side.news.send(line + b"\n")

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(b"x")

    @staticmethod
    def _shut(connections: Sequence[socket.socket]) -> None:
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _readable(descriptors: Sequence[int], timeout: float) -> set[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(timeout * 1000)}
