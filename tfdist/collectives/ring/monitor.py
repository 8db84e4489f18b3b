"""Detects the loss of a neighbour in a ring, and reports it to the other workers.

Each pair of neighbours has a second connection, for news. A thread reads both of this worker's
news connections all the time, also while the worker computes: when one closes, that neighbour has
ended. The thread forwards what it learns to the other side before it closes its own connections, so
that every worker names the one that was lost first, not the one that forwarded the report. Then it
shuts down the data connections, which wakes a thread that waits in a collective.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tfdist.collectives.ring.connections import SILENCE, sends_again
from tfdist.collectives.ring.failure import (
    DAMAGED,
    EXITED,
    INTERRUPTED,
    LOST,
    RingError,
    RingFailure,
    decode,
)
from tfdist.runtime.heartbeat import record_waiting
from tfdist.runtime.log import LOGGER

# Seconds between two checks of a collective's age.
_TICK = 1.0
# Seconds to wait for the reason after a neighbour's data connection has ended.
_PATIENCE = 1.0
_LONGEST_LINE = 1024


@dataclass
class Neighbour:
    """One side of the ring.

    Attributes:
        rank: The worker on that side.
        news: The connection for news.
        waits: The number of the latest collective in which it reported that it waits.
        ended: The reason it gave when it left the ring; "" until then.
    """

    rank: int
    news: socket.socket
    waits: int = -1
    ended: str = ""
    partial: bytes = field(default=b"", repr=False)


class RingMonitor:
    """Runs the thread, and holds the state of the ring.

    Args:
        rank: This worker.
        names: The names of the workers, by rank.
        following: The next worker.
        previous: The previous worker.
        data: The connections to shut down when the ring breaks, first that to the next worker.
        warn_seconds: The time in one collective after which a warning names the awaited worker.
        stall_seconds: The time after which a worker that runs but does not respond counts as lost.
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
    ) -> None:
        self.failure: RingFailure | None = None
        self.closed = False
        # The current collective: its number, its start, and whether it waits for the next worker
        # to receive, else for the previous one to send.
        self.number = 0
        self.since: float | None = None
        self.waits_for_next = False
        self._rank = rank
        self._names = names
        self._sides = (following, previous)
        self._data = data
        self._warn_seconds = warn_seconds
        self._stall_seconds = stall_seconds
        self._warned = self._reported = -1
        self._records_waiting = False
        self._sends_again_since: float | None = None
        self._lock = threading.Lock()
        self._known = threading.Event()
        self._wake, self._woken = socket.socketpair()
        for side in self._sides:
            side.news.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="tfdist ring", daemon=True)
        self._thread.start()

    def error(self) -> RingError:
        """Returns the error with the reason why the ring is broken; call it only where it is."""
        failure = self.failure or RingFailure(EXITED, self._rank, "the ring is closed here")
        return failure.error(self._names[failure.rank])

    def failed(self, following: bool, reason: str) -> RingError:
        """Returns the error for a data connection that ended, once the reason is known.

        Args:
            following: Whether it is the connection to the next worker.
            reason: The error of the connection, used where no better reason is known.
        """
        if not self._known.wait(_PATIENCE):
            side = self._sides[0 if following else 1]
            if side.ended:
                self.break_off(RingFailure(EXITED, side.rank, side.ended))
            else:
                self.break_off(RingFailure(LOST, side.rank, reason))
        return self.error()

    def damaged(self) -> RingError:
        """Breaks the ring as data of the previous worker was changed; returns the error."""
        rank = self._sides[1].rank
        sent = f"{self._own} received other bytes than {self._names[rank]} sent"
        self.break_off(RingFailure(DAMAGED, rank, f"{sent}, in collective {self.number}"))
        return self.error()

    def break_off(self, failure: RingFailure) -> None:
        """Breaks the ring, unless it is broken already, and sends both neighbours the reason."""
        with self._lock:
            if self.failure is not None or self.closed:
                return
            self.failure = failure
            self._report(failure.encode())
        self._known.set()
        self._shut(self._data)
        self._wake_up()

    def interrupt(self) -> None:
        """Breaks the ring if a collective runs, as the main thread has to handle a signal."""
        if self.since is not None:
            self.break_off(RingFailure(INTERRUPTED, self._rank, "by a signal"))

    def close(self, news: RingFailure) -> None:
        """Leaves the ring and sends the neighbours the reason; ends a collective that runs."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            if self.failure is None:
                self._report(news.encode())
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
        while not self.closed and self.failure is None:
            open_ones = [side for side in self._sides if not side.ended]
            descriptors = [side.news.fileno() for side in open_ones]
            ready = _readable([self._woken.fileno(), *descriptors], _TICK)
            for side in open_ones:
                if side.news.fileno() in ready:
                    self._read(side)
            self._check_age()
            self._check_data()
        self._record_waiting(False)

    def _read(self, side: Neighbour) -> None:
        try:
            data = side.news.recv(4096)
        except BlockingIOError:
            return
        except OSError as error:
            self.break_off(RingFailure(LOST, side.rank, error.strerror or str(error)))
            return
        if not data:
            self.break_off(RingFailure(LOST, side.rank, "it closed the connection"))
            return
        *lines, side.partial = (side.partial + data)[-_LONGEST_LINE:].split(b"\n")
        for line in lines:
            self._handle(side, line)

    def _handle(self, side: Neighbour, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        if word == b"waiting" and rest.isdigit():
            side.waits = int(rest)
            return
        failure = decode(line, len(self._names))
        if failure is None:
            return
        if failure.kind == EXITED and failure.rank == side.rank:
            # Data that it sent before may still be needed; a read of more will fail.
            side.ended = failure.reason
        else:
            self.break_off(failure)

    def _check_age(self) -> None:
        since, number = self.since, self.number
        age = 0.0 if since is None else time.monotonic() - since
        waits = age >= _TICK / 2
        self._record_waiting(waits)
        if not waits:
            return
        if self._reported != number:
            self._reported = number
            with self._lock:
                self._report(b"waiting %d" % number)
        side = self._sides[0 if self.waits_for_next else 1]
        name, waits_too = self._names[side.rank], side.waits >= number
        if age > self._warn_seconds and self._warned != number:
            self._warned = number
            state = "waits for another" if waits_too else "has not entered this collective"
            LOGGER.warning("%s: has waited %.0f s for %s, which %s", self._own, age, name, state)
        # A neighbour that waits too knows the cause better: it gets the time to report it.
        if age > self._stall_seconds * (2 if waits_too else 1):
            reason = f"it is running but has not responded for {age:.0f} s"
            self.break_off(RingFailure(LOST, side.rank, reason))

    def _check_data(self) -> None:
        """Breaks the ring where nothing that is sent to the next worker arrives.

        The connection for news may hold: its packets are small.
        """
        if not sends_again(self._data[0]):
            self._sends_again_since = None
            return
        now = time.monotonic()
        self._sends_again_since = self._sends_again_since or now
        if now - self._sends_again_since > SILENCE:
            reason = (
                f"its machine has acknowledged no data for {SILENCE} s; if it answers otherwise, "
                "large packets are lost on the way: compare the MTU of both"
            )
            self.break_off(RingFailure(LOST, self._sides[0].rank, reason))

    def _record_waiting(self, waits: bool) -> None:
        if waits != self._records_waiting:
            self._records_waiting = waits
            record_waiting(waits)

    @property
    def _own(self) -> str:
        return self._names[self._rank]

    def _report(self, line: bytes) -> None:
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
