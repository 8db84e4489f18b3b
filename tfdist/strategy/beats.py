"""The chief's word to ps and workers: that it lives, what it does, and how it ends.

A thread a task writes to the task's `Note` twice a second, through TensorFlow's servers, whose
calls have no deadline. A call that stays without an answer for the stall limit shows a task that
is stopped or cut off: the chief names it to all others, and ends.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.eager import context, executor

from tfdist.cluster import Cluster, Task
from tfdist.collectives.peer_errors import lost
from tfdist.errors import TfdistError
from tfdist.runtime import excepthook, heartbeat, shutdown
from tfdist.runtime.timeouts import SuspendAwareClock, patience, stall_seconds
from tfdist.strategy.note import BEAT, DONE, LOST, PATH

_PERIOD = 0.5
_TICK = 0.25
_HERE = "/job:chief/replica:0/task:0/device:CPU:0"
# Seconds for the others to hear which task was lost.
_FAREWELL = 1.0

# Whether the main thread waits for the answer of a worker.
_awaited = threading.Event()


@contextlib.contextmanager
def awaiting_workers() -> Iterator[None]:
    """Notes that this thread waits for workers, so that it is not the chief who is stuck."""
    _awaited.set()
    try:
        yield
    finally:
        _awaited.clear()


class Beats:
    """Keeps ps and workers informed until this process ends, and watches them.

    Args:
        cluster: The cluster of this task, the chief.

    Raises:
        ConfigError: TFDIST_STALL is malformed.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._own = str(cluster.task)
        self._limit = stall_seconds()
        period = min(_PERIOD, self._limit / 4)
        self._lines = [_Line(t, period) for t in cluster.tasks if t.type in ("ps", "worker")]
        self._lock = threading.Lock()
        excepthook.before_end(self._tell_loss)
        for line in self._lines:
            shutdown.at_exit(f"{line.task} to hear that all is done", line.end)
        threading.Thread(target=self._watch, name="tfdist beats", daemon=True).start()

    def _watch(self) -> None:
        clock, idle, beat = SuspendAwareClock(), 0.0, heartbeat.latest()
        while True:
            time.sleep(_TICK)
            passed = clock.passed()
            for line in self._lines:
                line.age = line.age + passed if line.is_calling else 0.0
            latest = heartbeat.latest()
            idle = idle + passed if latest == beat and _awaited.is_set() else 0.0
            beat = latest
            who, reason = self._problem(beat.phase if beat else "", idle)
            if who:
                excepthook.report(lost(self._own, who, reason))

    def _problem(self, phase: str, idle: float) -> tuple[str, str]:
        """Returns which task is stuck and how that is seen; "" and "" where none is."""
        late = [line for line in self._lines if line.age > self._limit]
        if late:
            names = ", ".join(str(line.task) for line in late)
            return names, f"alive, and silent for {max(line.age for line in late):.0f} s"
        if idle > patience(phase, self._limit):
            return "a worker", f"all answer, but a batch has come to no end for {idle:.0f} s"
        return "", ""

    def _tell_loss(self, error: TfdistError) -> None:
        """Tells all tasks that answer why the chief ends, as far as they hear it in time."""
        with self._lock:
            for line in self._lines:
                line.tell(f"{LOST} {' '.join(str(error).split())}")
            until = time.monotonic() + _FAREWELL
            for line in self._lines:
                line.has_told.wait(max(0.0, until - time.monotonic()))


class _Line:
    """Writes to the note of one task, in a thread.

    Args:
        task: The task.
        period: Seconds between two beats.
    """

    def __init__(self, task: Task, period: float) -> None:
        self.task = task
        self.is_calling = False
        self.age = 0.0  # Seconds for which the call under way has had no answer.
        self.has_told = threading.Event()
        self._device = f"/job:{task.type}/replica:0/task:{task.index}/device:CPU:0"
        self._period = period
        self._last_word = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tfdist beat {task}", daemon=True)
        self._thread.start()

    def tell(self, last_word: str) -> None:
        """Has the task hear a last note."""
        self._last_word = last_word
        self._ending.set()

    def end(self) -> None:
        """Tells the task that all is done, if it is, and waits until it has heard that."""
        # The other tasks must not take an exception or a nonzero exit code for success.
        if shutdown.ends_well():
            self.tell(DONE)
        else:
            self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        # The threads of a process share an executor otherwise, and with it each other's errors.
        with context.executor_scope(executor.new_executor(enable_async=False)):
            self._beat()

    def _beat(self) -> None:
        number = 0
        while not self._ending.is_set():
            number += 1
            self._write(f"{BEAT} {number} {_progress()}")
            self._ending.wait(self._period)
        if self._last_word:
            self._write(self._last_word)
        self.has_told.set()

    def _write(self, text: str) -> None:
        # Made here: to make them on the other task would hold Python's lock as long as that takes.
        with tf.device(_HERE):
            path, note = tf.constant(PATH), tf.constant(f"{text}\n")
        self.is_calling = True
        # An error means that the task has ended: others see that, and start it again.
        with contextlib.suppress(tf.errors.OpError), tf.device(self._device):
            tf.io.write_file(path, note)
        self.is_calling = False


def _progress() -> str:
    """Returns the phase of this process and what changes as it goes on, as two words."""
    beat = heartbeat.latest()
    if beat is None or _awaited.is_set():  # The chief itself sees to a worker that is stuck.
        return "- -"
    return f"{beat.phase} {beat.epoch}/{beat.step}/{beat.time:.3f}"
