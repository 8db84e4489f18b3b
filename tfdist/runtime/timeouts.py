"""How long a task waits for others: at the start, and for one that runs and makes no progress."""

from __future__ import annotations

import os
import time

from tfdist.errors import ConfigError
from tfdist.validation import reject, seconds

WAIT_VARIABLE = "TFDIST_WAIT"
WAIT_SECONDS = 300.0
STALL_VARIABLE = "TFDIST_STALL"
STALL_SECONDS = 600.0

# Building, saving, compiling and the connections that the first step makes take minutes, and
# show no progress while they do.
SLOW_PHASES = ("building", "tracing", "saving")
_SLOW_SECONDS = 600.0
# Not in tfdist's hands, or with their own limits.
UNTIMED_PHASES = ("", "meeting", "serving", "done")

# A longer time between two looks means that this process did not run itself.
_LONGEST_LOOK = 2.0


def wait_seconds() -> float:
    """Returns the seconds to wait for other tasks to start: $TFDIST_WAIT, or 300.

    Raises:
        ConfigError: The variable is not a number of seconds.
    """
    text = os.environ.get(WAIT_VARIABLE, "")
    if not text:
        return WAIT_SECONDS
    try:
        return seconds(text)
    except ConfigError as error:
        raise ConfigError(f"{WAIT_VARIABLE}: {error}") from None


def stall_seconds() -> float:
    """Returns the seconds after which a silent task counts as lost: $TFDIST_STALL, or 600.

    `inf` is for never.

    Raises:
        ConfigError: The variable is not a number of seconds.
    """
    text = os.environ.get(STALL_VARIABLE, "")
    try:
        limit = float(text) if text else STALL_SECONDS
    except ValueError:
        limit = -1.0
    if not limit > 0:
        reject(STALL_VARIABLE, f"{text!r} is given; allowed: seconds, more than 0, or inf")
    return limit


def patience(phase: str, limit: float) -> float:
    """Returns the seconds for which a task's heartbeat may stay unchanged.

    Args:
        phase: What the task is doing; one of `heartbeat.PHASES`, or "" if it is not known.
        limit: The seconds for a phase that makes steps.
    """
    if phase in UNTIMED_PHASES:
        return float("inf")
    return limit + (_SLOW_SECONDS if phase in SLOW_PHASES else 0.0)


class SuspendAwareClock:
    """Measures time, but hardly any of that in which this process or its machine is stopped."""

    def __init__(self) -> None:
        self._looked = time.monotonic()

    def passed(self) -> float:
        """Returns the seconds since the latest call, or the start: 2 at most."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, _LONGEST_LOOK), now
        return passed
