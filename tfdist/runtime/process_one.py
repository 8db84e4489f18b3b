"""Process 1 of a container, which the kernel treats in ways of its own.

It gets no signal that it has no handler for, nobody inside the container can kill it, and it is
left the dead children of others. So `go_on_in_a_child` leaves process 1 to a few lines of Python,
which hand signals on and end as the child ends.

While TensorFlow connects to the other tasks it holds Python's lock and takes SIGTERM for itself:
then the child cannot end itself, and says so in memory that both see.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
from collections.abc import Iterator

from tfdist.errors import EXIT_PREEMPTED

_HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

_stands_for: int | None = None  # The process that process 1 has handed its work to.
_shared: mmap.mmap | None = None


def is_one() -> bool:
    """Whether this is process 1, or what does its work."""
    return os.getpid() in (1, _stands_for)


def go_on_in_a_child() -> None:
    """Where this is process 1: returns in a child process, and ends this one when that ends.

    Must be called before there are threads.
    """
    global _stands_for, _shared
    if os.getpid() != 1:
        return
    _shared = mmap.mmap(-1, 1)
    # Else one that comes now would be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_HANDED_ON, signal.SIGCHLD))
    child = os.fork()
    if child:
        os._exit(_wait_for(child, _shared))
    _stands_for = os.getpid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_HANDED_ON, signal.SIGCHLD))


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Says that within the block this process may be unable to end itself on SIGTERM."""
    if _shared is None or os.getpid() != _stands_for:
        yield
        return
    _shared[0] = 1
    try:
        yield
    finally:
        _shared[0] = 0


def _wait_for(child: int, shared: mmap.mmap) -> int:
    """Hands signals on to the child until it ends; returns the code to end with."""
    asked = False
    while True:
        with contextlib.suppress(ChildProcessError):
            while True:  # Those of others too, whose parents have died.
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == child:
                    code = os.waitstatus_to_exitcode(status)
                    killed = asked and code == -signal.SIGKILL
                    return EXIT_PREEMPTED if killed else code if code >= 0 else 128 - code
                if not pid:
                    break
        came = signal.sigtimedwait({*_HANDED_ON, signal.SIGCHLD}, 0.5)
        if came is not None and came.si_signo != signal.SIGCHLD:
            asked = asked or came.si_signo == signal.SIGTERM
            os.kill(child, came.si_signo)
        if asked and shared[0]:
            os.kill(child, signal.SIGKILL)
