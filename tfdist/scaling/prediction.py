"""Predicts step time, efficiency and epoch time of N workers by the α–β model of their ring.

Weak scaling: each worker keeps its batch, and the global batch grows. A step is the time of its
computation, which does not depend on N, and what of the all-reduce is not hidden behind it.
Not in the model: workers that wait for the slowest one, input, and contention between links.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.collectives.transport_names import BUCKET_BYTES
from tfdist.scaling.network import Link, ring_seconds, server_seconds

# Of three passes, two are the backward one's.
BACKWARD_FRACTION = 2 / 3


@dataclass(frozen=True)
class Step:
    """A predicted step.

    Attributes:
        workers: The number of workers, N.
        communication: Seconds of the all-reduce, or of the parameter servers.
        exposed: Seconds of those that a worker waits for.
        seconds: Seconds of a step.
        efficiency: What N workers do, relative to N times one worker.
        epoch_seconds: Seconds of an epoch; None where its length is not known.
    """

    workers: int
    communication: float
    exposed: float
    seconds: float
    efficiency: float
    epoch_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a prediction assumes.

    Attributes:
        compute_seconds: Seconds of a step of one worker alone.
        wire_bytes: Bytes of all gradients, in the type in which they are sent.
        link: The slowest link between two workers.
        overlap: Whether gradients are sent during the backward pass.
        servers: Parameter servers; 0 for a ring.
    """

    compute_seconds: float
    wire_bytes: float
    link: Link
    overlap: bool = False
    servers: int = 0

    def step(self, workers: int, batch: int = 1, examples: float | None = None) -> Step:
        """Predicts the step of so many workers.

        Args:
            workers: The number of workers.
            batch: Examples per worker and step.
            examples: Examples per epoch, if known.
        """
        communication = self._communication(workers)
        exposed = communication
        if self.overlap:
            hidden = BACKWARD_FRACTION * self.compute_seconds
            exposed = max(communication - hidden, communication * self._last_part())
        seconds = self.compute_seconds + exposed
        epoch = None if examples is None else math.ceil(examples / (batch * workers)) * seconds
        efficiency = self.compute_seconds / seconds
        return Step(workers, communication, exposed, seconds, efficiency, epoch)

    def steps(
        self, workers: Sequence[int], batch: int = 1, examples: float | None = None
    ) -> list[Step]:
        """Predicts the steps of several numbers of workers."""
        return [self.step(count, batch, examples) for count in workers]

    def _communication(self, workers: int) -> float:
        if self.servers:
            return server_seconds(self.wire_bytes, workers, self.servers, self.link)
        messages = max(1, math.ceil(self.wire_bytes / BUCKET_BYTES)) if self.overlap else 1
        return ring_seconds(self.wire_bytes, workers, self.link, messages)

    def _last_part(self) -> float:
        """The fraction of the communication that begins when the backward pass is over.

        The last bucket of gradients has nothing left to hide behind.
        """
        if self.servers:
            return 0.5  # The next weights are fetched when all gradients are in.
        return min(1.0, BUCKET_BYTES / self.wire_bytes)


def powers_of_two(most: int) -> list[int]:
    """Returns 1, 2, 4 and so on, up to `most`."""
    return [1 << power for power in range(most.bit_length()) if 1 << power <= most]
