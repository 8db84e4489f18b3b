"""A process that is held is ended from outside."""

import signal
import subprocess
import sys

# Holds the interpreter lock and ignores SIGTERM, as TensorFlow does while it waits for a peer.
HELD = """
import ctypes, signal, sys
from tfdist.runtime.watchdog import watchdog
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with watchdog(1.0, "worker/0: waiting for nobody"):
    print("held", flush=True)
    ctypes.PyDLL(None).sleep(100)
print("not reached")
"""

DONE = """
from tfdist.runtime.watchdog import watchdog
with watchdog(60.0, "nothing"):
    pass
print("done")
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )


def test_a_held_process_is_killed_and_the_reason_said():
    ended = run(HELD)
    assert ended.stdout == "held\n"
    assert ended.returncode == -signal.SIGKILL
    assert "tfdist: worker/0: waiting for nobody took longer than 1 s" in ended.stderr


def test_a_process_that_gets_on_is_left_alone():
    ended = run(DONE)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
