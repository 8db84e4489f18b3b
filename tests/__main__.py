"""Runs all tests, in two halves at once: `python -m tests [arguments for pytest]`.

The tests of real processes mostly wait for one, so they run beside those that compute in the test
process. What the second half says is shown when the first is done, so nothing is mixed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

# The conformance suite's processes run at a low priority beside the first half.
COMPUTING = "conformance or not (cluster or chaos)"
WAITING = f"not ({COMPUTING})"


def main(arguments: list[str]) -> int:
    """Returns the exit code: that of the half that failed, if one did."""
    began = time.monotonic()
    pytest = [sys.executable, "-m", "pytest", *arguments]
    with tempfile.TemporaryFile() as output:
        # Without a cache: two sessions would write to one.
        command = [*pytest, "-p", "no:cacheprovider", "-m", WAITING]
        beside = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = subprocess.run([*pytest, "-m", COMPUTING], check=False).returncode
            other = beside.wait()
        finally:
            beside.terminate()  # Ctrl-C: pytest ends what its tests have started.
            beside.wait()
        output.seek(0)
        sys.stdout.buffer.write(output.read())
        sys.stdout.flush()
    print(f"all tests: {time.monotonic() - began:.0f} s", flush=True)
    return code or other


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
