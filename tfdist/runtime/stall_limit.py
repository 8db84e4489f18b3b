"""Reads after how many seconds a task that is alive and silent counts as lost."""

from __future__ import annotations

import os

from tfdist.validation import reject

VARIABLE = "TFDIST_STALL"
STALL_SECONDS = 600.0

# Building, saving, compiling and the connections that the first step makes take minutes, and
# show no progress while they do.
SLOW_PHASES = ("building", "tracing", "saving")
_SLOW_SECONDS = 600.0
# Not in tfdist's hands, or with limits of their own.
UNTIMED_PHASES = ("", "meeting", "serving", "done")


def stall_seconds() -> float:
    """Returns $TFDIST_STALL, or 600; `inf` is for never.

    Raises:
        ConfigError: The variable is not a number of seconds.
    """
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text) if text else STALL_SECONDS
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        reject(VARIABLE, f"{text!r} is given; allowed: seconds, more than 0, or inf")
    return seconds


def patience(phase: str, limit: float) -> float:
    """Returns the seconds for which a task's heartbeat may stay unchanged.

    Args:
        phase: What the task is doing; one of `heartbeat.PHASES`, or "" if it is not known.
        limit: The seconds for a phase that makes steps.
    """
    if phase in UNTIMED_PHASES:
        return float("inf")
    return limit + (_SLOW_SECONDS if phase in SLOW_PHASES else 0.0)
