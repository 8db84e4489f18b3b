"""`tfdist task`: run a command as one task of a Slurm step, and let its exit code through.

Where any task dies by a signal, `srun` ends with 128 and the signal's number, whatever the others
ended with. So `srun --kill-on-bad-exit`, which ends the others by SIGTERM when a user's mistake
ended the first one with code 1, ends with 143, as if starting again might help. Here each task
ends with a code of its own, and those for which starting again cannot help are lifted above all
others: of several codes `srun` gives the highest.
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

# What is added to the code of a command that failed for good, below 128.
LIFT = 200
_HIGHEST = 255


def main(argv: list[str]) -> int:
    """Runs the command behind `--`; returns 0, 200 and its code, or a code from 128 to 199.

    Raises:
        ConfigError: There is no command.
    """
    cut = argv.index("--") if "--" in argv else len(argv)
    Parser(
        "tfdist task", "Run '-- COMMAND' as a task of srun, whose exit code srun then gives."
    ).parse_args(argv[:cut])
    command = argv[cut + 1 :]
    if not command:
        raise ConfigError("task: no command given; add '-- COMMAND'")
    # SIGTERM is the command's affair, which may have something to save. Slurm sends it to all
    # processes of a task: were it handed on, the command would get it twice. To ignore it would
    # make the command ignore it too.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        ended = subprocess.run(command)
    except OSError as error:
        given = quote(command[0])
        print(f"tfdist: task: {given} cannot be run ({error.strerror})", file=sys.stderr)
        return lifted(EXIT_CONFIG)
    return lifted(ended.returncode)


def lifted(code: int) -> int:
    """What `srun` is told of a command that ended with a code, or by a signal (below 0)."""
    if code == EXIT_DONE:
        return EXIT_DONE
    if code < 0:
        return EXIT_PREEMPTED if code == -signal.SIGTERM else EXIT_PEER_LOST
    if code < 128:
        # There is no room for the shell's 126 and 127.
        return LIFT + (code if LIFT + code <= _HIGHEST else EXIT_USER_ERROR)
    return min(code, LIFT - 1)
