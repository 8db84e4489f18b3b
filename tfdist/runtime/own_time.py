"""Time in which this process ran, for those who wait for a word of another one."""

from __future__ import annotations

import time

# A longer time between two looks means that this process did not run itself.
_LONGEST_LOOK = 2.0


class OwnTime:
    """A clock that hardly goes on while this process, and maybe its whole machine, is stopped."""

    def __init__(self) -> None:
        self._looked = time.monotonic()

    def passed(self) -> float:
        """Returns the seconds since the latest call, or the start: 2 at most."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, _LONGEST_LOOK), now
        return passed
