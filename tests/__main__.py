"""Runs all tests, in three rows at once: `python -m tests [arguments for pytest]`.

The tests of real processes mostly wait for one, so they run beside those that compute in the test
process. What the other rows say is shown when the first is done, so nothing is mixed.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO

# Those of the conformance suite that start no cluster are among them.
COMPUTING = "not (cluster or chaos or keras_suite or beside)"
# Rows of sessions, one after another; together they last about as long as the one that computes.
BESIDE = (
    ("cluster and not chaos and not conformance", "keras_suite and not cluster"),
    ("chaos", "conformance and cluster", "beside and not (cluster or chaos)"),
)


def main(arguments: list[str]) -> int:
    """Returns the exit code: that of a part that failed, if one did."""
    began = time.monotonic()
    pytest = [sys.executable, "-m", "pytest", *arguments]
    with contextlib.ExitStack() as stack:
        beside = []
        for marks in BESIDE:
            output = stack.enter_context(tempfile.TemporaryFile())
            row = _Row(pytest, marks, output)
            stack.callback(row.end)
            beside.append((row, output))
        codes = [subprocess.run([*pytest, "-m", COMPUTING], check=False).returncode]
        for row, output in beside:
            codes += row.wait()
            output.seek(0)
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
    print(f"all tests: {time.monotonic() - began:.0f} s", flush=True)
    return next((code for code in codes if code), 0)


class _Row:
    """Runs sessions of pytest one after another, in a thread.

    Args:
        pytest: The command of a session.
        marks: The marks of each session's tests.
        output: Takes all that they say.
    """

    def __init__(self, pytest: list[str], marks: tuple[str, ...], output: IO[bytes]) -> None:
        self._pytest, self._marks, self._output = pytest, marks, output
        self._codes: list[int] = []
        self._ended = False
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for tests in self._marks:
            # Without a cache: several sessions would write to one.
            command = [*self._pytest, "-p", "no:cacheprovider", "-m", tests]
            with self._lock:
                if self._ended:
                    return
                self._process = subprocess.Popen(
                    command, stdout=self._output, stderr=subprocess.STDOUT
                )
            self._codes.append(self._process.wait())

    def wait(self) -> list[int]:
        """Returns the sessions' exit codes."""
        self._thread.join()
        return self._codes

    def end(self) -> None:
        """Interrupts the session that runs, which then ends what its tests have started."""
        with self._lock:
            self._ended = True
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
        self._thread.join()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
