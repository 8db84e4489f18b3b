"""Starts one task as a process behind its guard, ends it, and detects its end."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tfdist.errors import EXIT_PEER_LOST
from tfdist.launcher.exits import Exit
from tfdist.launcher.output import TaskOutput

_GUARD = str(Path(__file__).with_name("guard.py"))
_CHUNK = 64 * 1024
_GUARD_SECONDS = 10.0


class TaskProcess:
    """A running task. The supervisor reads `control` and `stdout` when they are ready.

    Args:
        name: The task's name.
        command: What to run.
        env: Its whole environment.
        cores: The cores to pin it to; none means all.
        output: Receives its output.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        cores: Sequence[int],
        output: TaskOutput,
    ) -> None:
        self.name = name
        self.output = output
        self.pid: int | None = None
        self.exit: Exit | None = None
        self.started = time.monotonic()
        self._heard = b""
        self._note = ""
        self.control, theirs = socket.socketpair()
        self.control.setblocking(False)
        with theirs:
            pinned = ",".join(map(str, cores))
            # -I and -S: the guard needs nothing from the user's environment.
            guard = [sys.executable, "-I", "-S", _GUARD, str(theirs.fileno()), pinned, *command]
            self._process = subprocess.Popen(
                guard,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self.stdout: IO[bytes] = self._process.stdout
        os.set_blocking(self.stdout.fileno(), False)

    def terminate(self) -> None:
        """Asks the task to end."""
        self._order(b"T")

    def kill(self) -> None:
        """Kills the task and all processes it started."""
        self._order(b"K")

    @property
    def given_up(self) -> bool:
        """Returns whether `give_up` was called; the task may still be ending."""
        return bool(self._note)

    def give_up(self, note: str) -> None:
        """Kills the task because it has stalled; its exit then has the note.

        Args:
            note: The problem.
        """
        self._note = note
        self.kill()

    def read_output(self) -> bool:
        """Reads output of the task; returns False once there will be no more."""
        try:
            data = os.read(self.stdout.fileno(), _CHUNK)
        except BlockingIOError:
            return True
        self.output.feed(data, final=not data)
        return bool(data)

    def read_control(self) -> bool:
        """Reads the guard's messages; returns False once the task has ended."""
        try:
            data = self.control.recv(4096)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self._heard += data
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == b"pid":
                self.pid = int(number)
            elif word == b"exit":
                self.exit = Exit.from_status(self.name, int(number), time.monotonic())
        if not data and self.exit is None:  # The guard itself was killed, the task with it.
            self.exit = Exit(self.name, -9, time.monotonic())
        if self.exit is not None and self._note:
            self.exit = Exit(self.name, EXIT_PEER_LOST, self.exit.at, self._note)
        return self.exit is None

    def close(self) -> None:
        """Releases the process, killing it if it has not ended."""
        self.control.close()
        try:
            # The guard ends once the socket is closed, and takes all with it.
            self._process.wait(timeout=_GUARD_SECONDS)
        except subprocess.TimeoutExpired:  # Stopped, perhaps. The kernel then ends the task.
            self._process.kill()
            self._process.wait()
        data = b"-"
        while data:
            try:
                data = os.read(self.stdout.fileno(), _CHUNK)
            except BlockingIOError:
                data = b""
            self.output.feed(data, final=not data)
        self.stdout.close()

    def _order(self, order: bytes) -> None:
        with contextlib.suppress(OSError):
            self.control.send(order)
