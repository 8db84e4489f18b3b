"""Handles process 1 of a container, which the kernel treats unlike any other process.

It receives no signal that it has no handler for, no process of the container can kill it, and it
has to reap the orphans of other processes. So `continue_in_child` leaves a few lines of Python in
process 1, which forward signals and exit as the child exits.

While TensorFlow connects to the other tasks it holds Python's lock and takes over SIGTERM. The
child cannot end itself then, and records that in shared memory.

An init such as tini in the image would not do as well: it only forwards SIGTERM, which has no
effect while TensorFlow ignores it, so that the pod would run until its grace period ends. And
users' own images, for which `tfdist render` writes manifests, mostly have none.
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
    """Returns whether this is process 1, or the child that does its work."""
    return os.getpid() in (1, _stands_for)


def continue_in_child() -> None:
    """Forks if this is process 1: returns in the child, and ends process 1 when the child ends.

    Does nothing in any other process. Must be called before there are threads.
    """
    global _stands_for, _shared
    if os.getpid() != 1:
        return
    _shared = mmap.mmap(-1, 1)
    # A signal that arrives now would be lost otherwise.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_HANDED_ON, signal.SIGCHLD))
    child = os.fork()
    if child:
        os._exit(_wait_for(child, _shared))
    _stands_for = os.getpid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_HANDED_ON, signal.SIGCHLD))


@contextlib.contextmanager
def blocks_sigterm() -> Iterator[None]:
    """Records that within the block this process may be unable to end itself on SIGTERM."""
    if _shared is None or os.getpid() != _stands_for:
        yield
        return
    _shared[0] = 1
    try:
        yield
    finally:
        _shared[0] = 0


def _wait_for(child: int, shared: mmap.mmap) -> int:
    """Forwards signals to the child until it ends; returns the exit code."""
    asked = False
    while True:
        with contextlib.suppress(ChildProcessError):
            while True:  # Orphans of other processes too.
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
