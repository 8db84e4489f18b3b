"""`tfdist task`: run a command as one task of a Slurm step, and let its exit code through.

Where any task dies by a signal, `srun` exits with 128 plus the signal's number, whatever the codes
of the others. So when a user's mistake ends one task with code 1 and `srun --kill-on-bad-exit` ends
the others by SIGTERM, `srun` exits with 143, as if starting again might help. `srun` returns the
highest of several codes: here no task dies by a signal, 200 is added to each code for which
starting again cannot help, and a task that was asked to stop ends with 128, below all that failed.

A task that ignores SIGTERM is killed by Slurm half a minute after another one has failed, and then
`srun` exits with 137 after all. So a code of 200 and above is also noted in a file.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tfdist.cli.arguments import Parser, seconds
from tfdist.cluster import Cluster
from tfdist.errors import (
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_PEER_LOST,
    EXIT_PREEMPTED,
    EXIT_USER_ERROR,
    ConfigError,
)
from tfdist.render.slurm import NO_RETRY, STOPPED
from tfdist.validation import quote

_HIGHEST = 255
# Seconds to let a lost peer end by itself, unless this task is asked to stop.
_LINGER = 10.0


def main(argv: list[str]) -> int:
    """Runs the command behind the flags; returns 0, 200 plus its code, or a code from 128 to 199.

    Raises:
        ConfigError: There is no command.
    """
    args, command = _parser().parse_with_command(argv)
    if not command:
        raise ConfigError("task: no command given; add '-- COMMAND'")
    try:
        with _log(args.log_dir) as log:
            code = encode_exit_code(_run(command, log, args.grace))
    except (ConfigError, OSError) as error:
        print(f"tfdist: {error}", file=sys.stderr)
        code = encode_exit_code(EXIT_CONFIG)
    if args.record is not None and code >= NO_RETRY:
        # Without it the code still goes through srun, unless that has to kill a task.
        with contextlib.suppress(OSError), args.record.open("a") as record:
            record.write(f"{code}\n")
    return code


def _parser() -> Parser:
    parser = Parser(
        "tfdist task",
        "Run a command as a task of srun, whose exit code then shows whether to retry.",
        examples=("tfdist task --grace 60 --log-dir logs -- python mine.py",),
        usage="tfdist task [FLAGS] [--] COMMAND",
    )
    parser.add_argument(
        "--grace", type=seconds, metavar="S", help="kill the command S seconds after SIGTERM"
    )
    parser.add_argument(
        "--log-dir", type=Path, metavar="DIR", help="write to a log there, such as worker-0.log"
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="append the code there if a retry cannot help",
    )
    return parser


@contextlib.contextmanager
def _log(folder: Path | None) -> Iterator[IO[bytes] | None]:
    if folder is None:
        yield None
        return
    task = Cluster.from_environment().task
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{task.type}-{task.index}.log").open("ab") as log:
        yield log


def _run(command: list[str], log: IO[bytes] | None, grace: float | None) -> int:
    # The command handles SIGTERM, as it may have something to save. Slurm sends it to all processes
    # of a task, so forwarding it would deliver it twice. Here it stays blocked, and a thread takes
    # it: a handler in Python is interrupted by the next signal, and gone while Python ends.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    is_stopping = threading.Event()
    try:
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=_let_sigterm_through)
    except OSError as error:
        raise ConfigError(f"task: {quote(command[0])} cannot be run ({error.strerror})") from None

    def wait_for_sigterm() -> None:
        signal.sigwait({signal.SIGTERM})
        is_stopping.set()
        if grace is not None:
            # TensorFlow that waits for a peer ignores SIGTERM.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace)
            process.kill()

    threading.Thread(target=wait_for_sigterm, daemon=True).start()
    code = process.wait()
    if code == EXIT_PEER_LOST:
        # The lost one may have failed permanently and still be ending. Once this task ends, Slurm
        # ends that one too, and its code would never be known.
        is_stopping.wait(_LINGER)
    return code


def _let_sigterm_through() -> None:
    # The child inherits the mask, and a program does not expect to be started with one.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def encode_exit_code(code: int) -> int:
    """Returns the exit code of the task for that of its command, or its signal (below 0)."""
    if code == EXIT_DONE:
        return EXIT_DONE
    if code in (-signal.SIGTERM, EXIT_PREEMPTED):
        return STOPPED
    if code in (STOPPED, EXIT_PEER_LOST) or code < 0:
        return EXIT_PEER_LOST
    if code < 128:
        # 126 and 127, the shell's codes, would exceed 255.
        return NO_RETRY + (code if NO_RETRY + code <= _HIGHEST else EXIT_USER_ERROR)
    return min(code, NO_RETRY - 1)
