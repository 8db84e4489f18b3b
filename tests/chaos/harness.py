"""Jobs that are run to be broken: starting them, hearing what they say, seeing them gone."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests import forked

FULL = os.environ.get("TFDIST_CHAOS") == "full"
JOB = str(Path(__file__).with_name("tiny_job.py"))
SOON = 120.0  # for a busy machine; what is measured has limits of its own
_MARK = "CHAOS_MARK"


def python() -> tuple[str, ...]:
    """What tasks are started with; in short form they have TensorFlow already."""
    return ("python",) if FULL else forked.python()


def size(ci: int, full: int) -> int:
    """How many trials to make."""
    return full if FULL else ci


def wait(condition: Callable[[], Any], seconds: float = SOON, what: str = "") -> Any:
    """Waits until something is the case; returns it."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"waited in vain for {what or 'it'}"
        time.sleep(0.05)


class Line(str):
    """A line with the time at which it came."""

    at: float

    def __new__(cls, text: str, at: float) -> Line:
        line = super().__new__(cls, text)
        line.at = at
        return line


class Program:
    """A process, marked so that whatever it leaves behind can be found."""

    def __init__(self, command: Sequence[str], env: dict[str, str] | None = None) -> None:
        self.mark = uuid.uuid4().hex
        self.lines: list[Line] = []
        self.started = time.time()
        self.ports: set[int] = set()
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **(env or {}), _MARK: self.mark, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self.lines.append(Line(text.rstrip("\n"), time.time()))

    def find(self, pattern: str, since: int = 0) -> list[Line]:
        """The lines that match, from line number `since` on."""
        return [line for line in self.lines[since:] if re.search(pattern, line)]

    def until(self, pattern: str, since: int = 0, seconds: float = SOON) -> Line:
        """Waits for a line."""

        def seen() -> list[Line]:
            found = self.find(pattern, since)
            assert found or self.process.poll() is None or self._reader.is_alive(), self.text()
            return found

        try:
            return wait(seen, seconds, pattern)[0]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None

    def end(self, seconds: float = SOON) -> int:
        """Waits for its end; returns the exit code."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end in {seconds} s\n{self.text()}") from None
        self._reader.join(seconds)
        return self.process.returncode

    def text(self) -> str:
        """All it has said so far, for a message."""
        return "\n".join(f"{line.at - self.started:6.1f} {line}" for line in self.lines)

    def tasks(self) -> dict[str, psutil.Process]:
        """The running tasks of a job, by name, without the launcher's own processes."""
        found = {}
        for process in self.left():
            try:
                config = json.loads(process.environ().get("TF_CONFIG", "null"))
                is_guard = any("guard.py" in word for word in process.cmdline())
                parent_is_task = process.ppid() in {p.pid for p in found.values()}
            except psutil.Error:
                continue
            if config is None or is_guard or parent_is_task:
                continue
            for members in config["cluster"].values():
                self.ports |= {int(address.rpartition(":")[2]) for address in members}
            found.setdefault(f"{config['task']['type']}/{config['task']['index']}", process)
        return found

    def kill(self, task: str, number: int = 9) -> float:
        """Sends a task a signal; returns when."""
        process = wait(lambda: self.tasks().get(task), what=task)
        at = time.time()
        process.send_signal(number)
        return at

    def pause(self) -> None:
        """Stops all tasks, so that the job cannot end before something else has happened."""
        for process in self.tasks().values():
            process.suspend()

    def go_on(self) -> None:
        """Lets them go on."""
        for process in self.tasks().values():
            process.resume()

    def left(self) -> list[psutil.Process]:
        """All processes that carry the mark and are not dead."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self.mark:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def close(self) -> None:
        """Ends what is left of the process itself."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def assert_nothing_left(self) -> None:
        """Sees that no process and no port is left, then clears away what was."""
        end = time.monotonic() + 15.0
        while (left := self.left()) and time.monotonic() < end:
            time.sleep(0.05)
        names = [str(process) for process in left]
        for process in left:
            process.kill()
        assert not left, f"processes were left: {names}"
        for port in self.ports:
            # The server ends a forked task whose place was taken a moment after that.
            wait(lambda port=port: _is_free(port), 15.0, f"port {port}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Programs:
    """All programs of one test."""

    def __init__(self) -> None:
        self._programs: list[Program] = []

    def start(self, command: Sequence[str], env: dict[str, str] | None = None) -> Program:
        program = Program(command, env)
        self._programs.append(program)
        return program

    def launch(self, flags: str, command: Sequence[str], **env: str) -> Program:
        """Starts `tfdist launch FLAGS -- COMMAND`."""
        words = [sys.executable, "-m", "tfdist", "launch", *flags.split(), "--", *command]
        return self.start(words, env)

    def __iter__(self) -> Iterator[Program]:
        return iter(self._programs)

    def close(self) -> None:
        for program in self._programs:
            program.close()
        for program in self._programs:
            program.assert_nothing_left()
