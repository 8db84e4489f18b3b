"""Runs all tests, in three parts at once: `python -m tests [arguments for pytest]`.

The tests of real processes mostly wait for one, so they run beside those that compute in the test
process. What the other parts say is shown when the first is done, so nothing is mixed.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import time

# The conformance suite's processes run at a low priority beside the first half.
COMPUTING = "conformance or not (cluster or chaos)"
WAITING = (f"not chaos and not ({COMPUTING})", f"chaos and not ({COMPUTING})")


def main(arguments: list[str]) -> int:
    """Returns the exit code: that of a part that failed, if one did."""
    began = time.monotonic()
    pytest = [sys.executable, "-m", "pytest", *arguments]
    with contextlib.ExitStack() as stack:
        beside = []
        for tests in WAITING:
            output = stack.enter_context(tempfile.TemporaryFile())
            # Without a cache: several sessions would write to one.
            command = [*pytest, "-p", "no:cacheprovider", "-m", tests]
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            stack.callback(_end, process)
            beside.append((process, output))
        codes = [subprocess.run([*pytest, "-m", COMPUTING], check=False).returncode]
        for process, output in beside:
            codes.append(process.wait())
            output.seek(0)
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
    print(f"all tests: {time.monotonic() - began:.0f} s", flush=True)
    return next((code for code in codes if code), 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupts pytest, which then ends what its tests have started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
