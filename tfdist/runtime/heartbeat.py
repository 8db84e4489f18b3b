"""Writes and reads the heartbeat of a task: a small file with its phase, step and time.

A supervisor names the file in the variable `TFDIST_HEARTBEAT`; the task writes it at the start
of each phase and, while it trains, after every call of TensorFlow (a few times per second at
most). No thread writes it, so a task whose Python is stuck writes nothing. The file is replaced
as a whole, so `read` never sees half a heartbeat.

TensorFlow itself writes `HeartbeatWriter.fed_path` (the name with `.fed`) whenever a training or
evaluation step has received its input, also between two steps of one call. Of tasks that stopped
at the same step, the one whose `fed` is older than its `time` still waits for its own input;
those whose `fed` is newer wait for a peer (unless they were stopped, which the kernel knows).

A transport that waits for a peer says so by `record_waiting`, in a file with `.waits` at its end.

The file that `TFDIST_SAVED` names is made at each new checkpoint: whoever starts the job again
sees by it that the job gets on.

A task that writes a heartbeat prints the stacks of its Python threads on SIGUSR1.

The phases: building (strategy, model), meeting (the peers), serving (as a ps, or as a worker
next to one), tracing (the first call, which compiles and may take minutes), training, evaluating,
predicting, saving, done.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import time
from dataclasses import asdict, dataclass, field

from tfdist.files import write_whole

VARIABLE = "TFDIST_HEARTBEAT"
SAVED_VARIABLE = "TFDIST_SAVED"
PHASES = (
    "building",
    "meeting",
    "serving",
    "tracing",
    "training",
    "evaluating",
    "predicting",
    "saving",
    "done",
)

_SHORTEST_PAUSE = 0.2

# The latest of this process, whether or not it is written to a file.
_latest: Beat | None = None


@dataclass(frozen=True)
class Beat:
    """One heartbeat.

    Attributes:
        phase: One of `PHASES`.
        epoch: The epoch, from 0.
        step: Steps done in this epoch (in this pass over the data, where it does not train).
        time: The time of writing, in seconds of `time.time()`.
        step_seconds: The duration of a recent step; 0.0 before the first one.
        pid: The process.
        fed: The time at which a step last received its input, in seconds of `time.time()`; 0.0
            where none has.
        waits: Whether the task waits for a peer, in a transport that records it. It does not make
            two heartbeats different: to wait is no progress.
    """

    phase: str
    epoch: int = 0
    step: int = 0
    time: float = 0.0
    step_seconds: float = 0.0
    pid: int = 0
    fed: float = 0.0
    waits: bool = field(default=False, compare=False)


def latest() -> Beat | None:
    """Returns the latest heartbeat of this process; None before the first one."""
    return _latest


class HeartbeatWriter:
    """Keeps the latest heartbeat of this process, and writes it where a file is named.

    Args:
        path: The file; the value of `TFDIST_HEARTBEAT` by default.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = os.environ.get(VARIABLE, "") if path is None else path
        self._last = Beat("")
        self._written = 0.0
        if self.path:
            with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
                faulthandler.register(signal.SIGUSR1, all_threads=True)

    def write(
        self, phase: str, epoch: int = 0, step: int = 0, *, step_seconds: float = 0.0
    ) -> None:
        """Writes a heartbeat, unless one of the same phase was written just now.

        A file that cannot be written does not stop training: it is left as it is.
        """
        global _latest
        now = time.monotonic()
        if phase == self._last.phase and now - self._written < _SHORTEST_PAUSE:
            return
        beat = Beat(phase, epoch, step, time.time(), step_seconds, os.getpid())
        self._last, self._written, _latest = beat, now, beat
        if not self.path:
            return
        with contextlib.suppress(OSError), write_whole(self.path) as new:
            new.write_text(json.dumps(asdict(beat)), encoding="ascii")

    @property
    def fed_path(self) -> str:
        """The file to touch when a step has received its input; "" where no file is named."""
        return f"{self.path}.fed" if self.path else ""


def record_waiting(waits: bool) -> None:
    """Records whether this process waits for a peer, where a file for heartbeats is named."""
    path = os.environ.get(VARIABLE, "")
    with contextlib.suppress(OSError):
        if path and waits:
            open(f"{path}.waits", "w").close()
        elif path:
            os.unlink(f"{path}.waits")


def record_saved() -> None:
    """Records that this process has saved a new checkpoint, where a file for that is named."""
    path = os.environ.get(SAVED_VARIABLE, "")
    if path:
        with contextlib.suppress(OSError):
            open(path, "w").close()


def files(path: str) -> tuple[str, ...]:
    """Returns all files that belong to the heartbeat in a file."""
    return path, f"{path}.fed", f"{path}.waits"


def read(path: str) -> Beat | None:
    """Reads the latest heartbeat of a task; returns None if there is none yet."""
    try:
        with open(path, encoding="ascii") as file:
            values = json.load(file)
        fed = 0.0
        with contextlib.suppress(OSError):
            fed = os.stat(f"{path}.fed").st_mtime
        return Beat(**{**values, "fed": fed, "waits": os.path.exists(f"{path}.waits")})
    except (OSError, ValueError, TypeError):
        return None
