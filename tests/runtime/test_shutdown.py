"""What is done when a process ends is done, and cannot keep it from ending."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading
from tfdist.runtime import shutdown
from tfdist.errors import PeerError
shutdown._SECONDS = 0.5
shutdown.at_exit("a word", lambda: print("well" if shutdown.ends_well() else "badly", flush=True))
if "slow" in sys.argv:
    shutdown.at_exit("one that never comes", threading.Event().wait)
"""


@pytest.mark.parametrize("pace", ["quick", "slow"])
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit()", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('no')", 1),
        ("raise ValueError", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
    ],
)
def test_the_exit_code_is_that_of_the_program(pace: str, end: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + end, pace], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert done.stdout == ("badly\n" if code else "well\n")
    line = "tfdist: ended without waiting any longer for one that never comes\n"
    assert (line in done.stderr) == (pace == "slow")


def test_an_error_of_tfdist_ends_with_its_own_code() -> None:
    end = "sys.last_value = PeerError('lost')\nsys.exit(138)"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + end, "slow"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (138, "badly\n")
