"""Runs the collectives of a step in a separate thread, while the step continues to compute."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Background:
    """Calls functions one after another, in the order in which they were given.

    The thread does not keep the process from ending, unlike those of `concurrent.futures`: it may
    be waiting for a lost worker.
    """

    def __init__(self) -> None:
        self._given: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Queues a call of a function; returns its future result."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tfdist ring", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._given.put((function, future))
        return future

    def _work(self) -> None:
        while True:
            function, future = self._given.get()
            try:
                result = function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            # The next call may be long in coming: nothing of this one is kept alive until then.
            del function, future
