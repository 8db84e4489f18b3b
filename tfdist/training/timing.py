"""Describes where the time of training went."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class EpochTiming:
    """Where the time of an epoch's training steps went, without validation and callbacks.

    Attributes:
        epoch: The epoch, from 0.
        steps: Its steps, as far as this process made them.
        seconds: Of all steps.
        input_seconds: Of that, how long they waited for data.
    """

    epoch: int
    steps: int
    seconds: float
    input_seconds: float
