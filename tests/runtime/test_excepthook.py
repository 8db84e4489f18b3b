"""How errors end a process: one line and the code that says whether to try again."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys
from tfdist.runtime import excepthook
from tfdist.errors import CheckpointError, ConfigError, OutOfStepError, PeerError, Preempted
atexit.register(print, "atexit")
excepthook.install(connected={connected})
excepthook.install()
def main(argv):
    print("begun")
    raise {error}
if {absl}:
    from absl import app
    app.run(main)
main(sys.argv)
"""


def run(error, *, connected=False, absl=False):
    program = PROGRAM.format(error=error, connected=connected, absl=absl)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return result.returncode, result.stdout.splitlines(), result.stderr


@pytest.mark.parametrize("absl", [False, True], ids=["plain", "absl"])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("ConfigError", 2),
        ("CheckpointError", 1),
        ("PeerError", 138),
        ("Preempted", 143),
        ("OutOfStepError", 1),
    ],
)
def test_an_error_of_tfdist_is_one_line(error, code, absl):
    assert run(f"{error}('what it was')", absl=absl) == (
        code,
        ["begun", "atexit"],
        "tfdist: what it was\n",
    )


def test_an_error_that_quotes_a_line_break_is_one_line_too():
    code, _, said = run("ConfigError('the file a\\nb\\x1b[31m is not there')")
    assert (code, said) == (2, "tfdist: the file a?b?[31m is not there\n")


def test_a_lost_or_straying_peer_ends_connected_tasks_at_once():
    assert run("PeerError('x')", connected=True) == (138, ["begun"], "tfdist: x\n")
    assert run("OutOfStepError('x')", connected=True) == (1, ["begun"], "tfdist: x\n")
    assert run("Preempted('x')", connected=True)[:2] == (143, ["begun", "atexit"])


def test_another_exception_keeps_its_traceback():
    code, _, said = run("ValueError('the user')", connected=True)
    assert code == 1
    assert said.startswith("Traceback")
    assert said.endswith("ValueError: the user\n")


@pytest.mark.parametrize(
    ("line", "env", "said"),
    [
        ("tfdist.Trainer", {"KERAS_BACKEND": "jax"}, "tfdist: KERAS_BACKEND: 'jax' is given; all"),
        ("tfdist.Cluster.from_environment()", {"TF_CONFIG": "{"}, "tfdist: TF_CONFIG: '{' is not"),
    ],
)
def test_the_first_call_of_a_script_ends_it_with_one_line_too(line, env, said):
    result = subprocess.run(
        [sys.executable, "-c", f"import tfdist\n{line}"],
        capture_output=True,
        text=True,
        env=os.environ | env,
    )
    assert result.returncode == 2 and result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1
