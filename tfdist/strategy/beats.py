"""The chief's status for ps and workers: that it runs, what it does, and how it ends.

The status is one line: `beat`, `lost` or `done`, and what belongs to it. One thread for each task
writes it twice a second to a memory file of that task's process, under a descriptor that the chief
knows. It writes through the task's own TensorFlow server, so no other user can reach the file, and
no disk and no port is needed. TensorFlow's calls have no deadline. One without an answer for the
stall limit shows a task that is stopped or cut off: the chief names it to all others, and ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.collectives.peer_errors import lost
from tfdist.errors import ConfigError, TfdistError
from tfdist.keras_internals import with_own_executor
from tfdist.runtime import excepthook, heartbeat, shutdown
from tfdist.runtime.timeouts import SuspendAwareClock, patience, stall_seconds

_PERIOD = 0.5
_TICK = 0.25
_HERE = "/job:chief/replica:0/task:0/device:CPU:0"
# Seconds for the others to learn which task was lost.
_FAREWELL = 1.0

BEAT, LOST, DONE = "beat", "lost", "done"
# The status file's descriptor: larger than those that a process has before TensorFlow starts, and
# smaller than the limits of how many it may have.
_NUMBER = 217
_MEMORY = getattr(os, "memfd_create", None)
_LONGEST = 4096
# The file's name inside its own process.
_PATH = f"{'/proc/self/fd' if sys.platform == 'linux' else '/dev/fd'}/{_NUMBER}"

# Whether the main thread waits for the answer of a worker.
_awaited = threading.Event()


@contextlib.contextmanager
def awaiting_workers() -> Iterator[None]:
    """Records that this thread waits for workers, so that it is not the chief that is stuck."""
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
        self._notifiers = [
            ChiefNotifier(t, period) for t in cluster.tasks if t.type in ("ps", "worker")
        ]
        self._lock = threading.Lock()
        excepthook.before_end(self._report_loss)
        for notifier in self._notifiers:
            shutdown.at_exit(f"{notifier.task} to learn that all is done", notifier.end)
        threading.Thread(target=self._watch, name="tfdist beats", daemon=True).start()

    def _watch(self) -> None:
        clock, idle, beat = SuspendAwareClock(), 0.0, heartbeat.latest()
        while True:
            time.sleep(_TICK)
            passed = clock.passed()
            for notifier in self._notifiers:
                notifier.age = notifier.age + passed if notifier.is_calling else 0.0
            latest = heartbeat.latest()
            idle = idle + passed if latest == beat and _awaited.is_set() else 0.0
            beat = latest
            who, reason = self._problem(beat.phase if beat else "", idle)
            if who:
                excepthook.report(lost(self._own, who, reason))

    def _problem(self, phase: str, idle: float) -> tuple[str, str]:
        """Returns which task is stuck and how that shows; "" and "" where none is."""
        late = [notifier for notifier in self._notifiers if notifier.age > self._limit]
        if late:
            names = ", ".join(str(notifier.task) for notifier in late)
            longest = max(notifier.age for notifier in late)
            return names, f"it is running but has not responded for {longest:.0f} s"
        if idle > patience(phase, self._limit):
            return "a worker", f"all respond, but a batch has not been completed for {idle:.0f} s"
        return "", ""

    def _report_loss(self, error: TfdistError) -> None:
        """Reports to all tasks that answer in time why the chief ends."""
        with self._lock:
            for notifier in self._notifiers:
                notifier.report(f"{LOST} {' '.join(str(error).split())}")
            until = time.monotonic() + _FAREWELL
            for notifier in self._notifiers:
                notifier.has_reported.wait(max(0.0, until - time.monotonic()))


class StatusFile:
    """The memory file of a ps or worker, to which the chief writes its status.

    Raises:
        ConfigError: A descriptor of that number is open in this process.
    """

    def __init__(self) -> None:
        try:
            os.fstat(_NUMBER)
        except OSError:
            pass  # It is free.
        else:
            raise ConfigError(
                f"serve: the file descriptor {_NUMBER} is open in this process, and needed for the "
                "chief to report that it is done; close it"
            )
        with (
            tempfile.TemporaryFile("w+b") if _MEMORY is None else open(_MEMORY("tfdist"), "w+b")
        ) as file:
            os.dup2(file.fileno(), _NUMBER, inheritable=False)

    def read(self) -> tuple[str, str]:
        """Returns the kind and the rest of the latest status; the empty kind without one."""
        text = os.pread(_NUMBER, _LONGEST, 0).decode(errors="replace")
        if not text.endswith("\n"):
            return "", ""  # It is being written.
        kind, _, rest = text.rstrip("\n").partition(" ")
        return kind, rest

    def close(self) -> None:
        """Frees the number."""
        os.close(_NUMBER)


class ChiefNotifier:
    """Writes the chief's status to one task, in a thread.

    Args:
        task: The task.
        period: Seconds between two beats.
    """

    def __init__(self, task: Task, period: float) -> None:
        self.task = task
        self.is_calling = False
        self.age = 0.0  # Seconds for which the call under way has had no answer.
        self.has_reported = threading.Event()
        self._device = f"/job:{task.type}/replica:0/task:{task.index}/device:CPU:0"
        self._period = period
        self._last_status = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tfdist beat {task}", daemon=True)
        self._thread.start()

    def report(self, last_status: str) -> None:
        """Writes a last status."""
        self._last_status = last_status
        self._ending.set()

    def end(self) -> None:
        """Reports that all is done, if it is, and waits until that is written."""
        # The other tasks must not take an exception or a nonzero exit code for success.
        if shutdown.ends_well():
            self.report(DONE)
        else:
            self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        # The threads of a process share an executor otherwise, and with it each other's errors.
        with with_own_executor():
            self._beat()

    def _beat(self) -> None:
        number = 0
        while not self._ending.is_set():
            number += 1
            self._write(f"{BEAT} {number} {_progress()}")
            self._ending.wait(self._period)
        if self._last_status:
            self._write(self._last_status)
        self.has_reported.set()

    def _write(self, text: str) -> None:
        # Made here: making them on the other task would hold Python's lock as long as that takes.
        with tf.device(_HERE):
            path, status = tf.constant(_PATH), tf.constant(f"{text}\n")
        self.is_calling = True
        # An error means that the task has ended: others see that, and start it again.
        with contextlib.suppress(tf.errors.OpError), tf.device(self._device):
            tf.io.write_file(path, status)
        self.is_calling = False


def _progress() -> str:
    """Returns the phase of this process and its progress in it, as two words."""
    beat = heartbeat.latest()
    if beat is None or _awaited.is_set():  # The chief itself detects a stuck worker.
        return "- -"
    return f"{beat.phase} {beat.epoch}/{beat.step}/{beat.time:.3f}"
