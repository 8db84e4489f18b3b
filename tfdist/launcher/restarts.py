"""Counts restarts and computes the delay before each."""

from __future__ import annotations

from tfdist.launcher.exits import Exit

_LONGEST_DELAY = 30.0
# A run that lasted this long was no failure to start: the next delay is short again.
_STEADY_SECONDS = 30.0


class Restarts:
    """The number of restarts so far, and the delay before the next one.

    Args:
        most: the number of restarts allowed, of all tasks together.
        first_delay: seconds before the first restart; doubled from one to the next.
    """

    def __init__(self, most: int, first_delay: float) -> None:
        self.count = 0
        self._most = most
        self._first_delay = first_delay
        self._doubled = 0

    def allow(self, end: Exit) -> bool:
        """Returns whether a task that ended like this may be started again."""
        return end.retryable and self.count < self._most

    def next_delay(self, lasted: float, worked: bool) -> float:
        """Counts a restart; returns the seconds to wait before it.

        Args:
            lasted: the duration of the failed run, in seconds.
            worked: whether it is known to have done some of its work.
        """
        self.count += 1
        if worked or lasted >= _STEADY_SECONDS:
            self._doubled = 0
        delay = min(self._first_delay * 2**self._doubled, _LONGEST_DELAY)
        self._doubled = min(self._doubled + 1, 16)
        return delay

    def __str__(self) -> str:
        return f"restart {self.count} of {self._most}"
