"""`tfdist task`: run a command as one task of a Slurm step, and let its exit code through.

Where any task dies by a signal, `srun` exits with 128 plus the signal's number, whatever the codes
of the others. So when a user's mistake ends one task with code 1 and `srun --kill-on-bad-exit` ends
the others by SIGTERM, `srun` exits with 143, as if starting again might help. `srun` returns the
highest of several codes: here no task dies by a signal, and 200 is added to each code for which
starting again cannot help.
"""

from __future__ import annotations

import signal
import subprocess
import sys

from tfdist.cli.arguments import Parser
from tfdist.errors import (
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_PEER_LOST,
    EXIT_PREEMPTED,
    EXIT_USER_ERROR,
    ConfigError,
)
from tfdist.validation import quote

# Added to the code of a command that failed for good (below 128).
LIFT = 200
_HIGHEST = 255


def main(argv: list[str]) -> int:
    """Runs the command behind `--`; returns 0, 200 plus its code, or a code from 128 to 199.

    Raises:
        ConfigError: There is no command.
    """
    cut = argv.index("--") if "--" in argv else len(argv)
    Parser(
        "tfdist task", "Run '-- COMMAND' as a task of srun; its exit code tells whether to retry."
    ).parse_args(argv[:cut])
    command = argv[cut + 1 :]
    if not command:
        raise ConfigError("task: no command given; add '-- COMMAND'")
    # The command handles SIGTERM, as it may have something to save. Slurm sends it to all processes
    # of a task, so forwarding it would deliver it twice; SIG_IGN would be inherited by the command.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        ended = subprocess.run(command)
    except OSError as error:
        given = quote(command[0])
        print(f"tfdist: task: {given} cannot be run ({error.strerror})", file=sys.stderr)
        return lifted(EXIT_CONFIG)
    return lifted(ended.returncode)


def lifted(code: int) -> int:
    """Returns the exit code of the task for that of its command, or its signal (below 0)."""
    if code == EXIT_DONE:
        return EXIT_DONE
    if code < 0:
        return EXIT_PREEMPTED if code == -signal.SIGTERM else EXIT_PEER_LOST
    if code < 128:
        # 126 and 127, the shell's codes, would exceed 255.
        return LIFT + (code if LIFT + code <= _HIGHEST else EXIT_USER_ERROR)
    return min(code, LIFT - 1)
