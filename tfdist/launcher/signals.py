"""Records the launcher's signals, and wakes a selector at each."""

from __future__ import annotations

import contextlib
import selectors
import signal
from types import TracebackType
from typing import Any

from tfdist.runtime.wakeup import Wakeup

_ENDING = (signal.SIGINT, signal.SIGTERM)
_OTHERS = (signal.SIGHUP, signal.SIGUSR2)


class Signals:
    """Records signals within a `with` block, where they would end the process otherwise.

    Attributes:
        ending: Those that ask to end (SIGINT, SIGTERM), in order.
        hung_up: Whether SIGHUP came, as when a terminal is closed; the reader resets it.
        report_wanted: Whether SIGUSR2 came; the reporter resets it.

    Args:
        selector: Is woken by each signal, with None as its data.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.ending: list[int] = []
        self.hung_up = False
        self.report_wanted = False
        self._selector = selector
        self._before: dict[int, Any] = {}
        self._wakeup: Wakeup | None = None

    def __enter__(self) -> Signals:
        with contextlib.suppress(ValueError):  # Not in the main thread: no signals come.
            self._wakeup = Wakeup()
            self._selector.register(self._wakeup, selectors.EVENT_READ, None)
            for number in (*_ENDING, *_OTHERS):
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # nohup
                self._before[number] = signal.signal(number, self._take_down)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._wakeup is not None:
            self._selector.unregister(self._wakeup)
            self._wakeup.close()

    def drain(self) -> None:
        """Empties the descriptor that woke the selector."""
        if self._wakeup is not None:
            self._wakeup.read()

    def _take_down(self, number: int, frame: Any) -> None:
        del frame
        if number == signal.SIGUSR2:
            self.report_wanted = True
        elif number == signal.SIGHUP:
            self.hung_up = True
        else:
            self.ending.append(number)
