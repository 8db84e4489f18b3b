"""Runs alongside one ssh: `python -m tfdist.launcher.hosts.remote A=B=C HOST SSH...`.

ssh passes no signals on, and a process on the other machine outlives it. So the launcher there
stops with its standard input (`stop_with_stdin`): variables are written to it, which so are on no
command line, and then a line every few seconds. At SIGTERM it is closed; what the other side then
prints and its exit code still come through. If this process dies, the pipe closes too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from tfdist.errors import EXIT_KILLED
from tfdist.launcher.hosts.stop_with_stdin import LINE_SECONDS

# Of ssh itself; also where a signal has ended what it ran.
_FAILED = 255
_AWAITED = (signal.SIGTERM, signal.SIGCHLD)


def main(variables: Sequence[str], host: str, command: Sequence[str]) -> int:
    """Runs ssh; returns the exit code of the launcher on the other machine, or that it was lost.

    Args:
        variables: The names of those to pass on.
        host: The machine, for messages.
        command: Ssh, its arguments, and what to run there.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    ssh = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        # A signal to this process' group is passed on to the other side, and must not end ssh.
        start_new_session=True,
        preexec_fn=_let_signals_through,
    )
    assert ssh.stdin is not None
    values = {name: os.environ[name] for name in variables if name in os.environ}
    stopping = False
    with contextlib.suppress(BrokenPipeError):
        ssh.stdin.write(json.dumps(values).encode() + b"\n")
        ssh.stdin.flush()
    while ssh.poll() is None:
        came = signal.sigtimedwait(_AWAITED, LINE_SECONDS)
        with contextlib.suppress(BrokenPipeError):
            if came is not None and came.si_signo == signal.SIGTERM:
                stopping = True
                ssh.stdin.close()
            elif not stopping:
                ssh.stdin.write(b"\n")
                ssh.stdin.flush()
    code = ssh.returncode
    if 0 <= code < _FAILED:
        return code
    if not stopping:
        print(f"tfdist: the connection to {host} was lost; its tasks end there", file=sys.stderr)
    return EXIT_KILLED


def _let_signals_through() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].split("="), sys.argv[2], sys.argv[3:]))
