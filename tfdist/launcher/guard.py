"""Runs between the launcher and one task, so that no process is left behind.

Run as a script with the arguments `CONTROL_FD CORES COMMAND...`. It starts the
command in its own process group and reports to the launcher over the
control socket. When the launcher dies, however it dies, the socket closes and
the guard kills the task and all that the task started, and removes the task's
heartbeat; when the guard is killed, the kernel kills the task. It imports no
more than it needs, because one runs next to every task.

From the launcher: `T` (SIGTERM to the task's group), `K` (SIGKILL to all). To
the launcher: `pid N`, then `exit STATUS` with the status from `waitpid`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(Exception):  # Linux only; elsewhere the socket has to do.
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _children() -> list[int]:
    """Returns the direct children of this process."""
    me = os.getpid()
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
            # The name in parentheses may hold anything, also parentheses.
            fields = stat.read().rpartition(b")")[2].split()
            if int(fields[1]) == me:
                found.append(int(name))
    return found


def _remove_heartbeat(path: str) -> None:
    """Removes a task's heartbeat, and the launcher's folder of them with the last one."""
    folder, name = os.path.split(path)
    with contextlib.suppress(OSError):
        for found in os.listdir(folder) if name else []:
            if found == name or found.startswith((f"{name}.", f".{name}.")):
                os.unlink(os.path.join(folder, found))
        os.rmdir(folder)  # Fails while other tasks' are there.


class Guard:
    """Starts one command and ends with it, leaving none of its processes."""

    def __init__(self, control: socket.socket, cores: list[int], command: list[str]) -> None:
        self._control = control
        self._cores = cores
        self._command = command
        self._pid = 0
        self._status: int | None = None
        self._stopping = False
        self._is_orphan = False
        self._asked: set[int] = set()

    def run(self) -> None:
        """Runs the command until it ends, or until the launcher does."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._start()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._terminate())
        # Only the task's own copies keep the pipe of its output open.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        self._send(f"pid {self._pid}\n")
        control = self._control.fileno()
        while self._status is None or (self._stopping and _children()):
            ready, _, _ = select.select([control, wake_read], [], [], 0.5)
            if wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
            self._reap()
            if self._stopping and self._status is not None:
                self._ask_orphans()
            if control in ready and not self._obey():
                break
        self._kill_all()
        if self._is_orphan:
            _remove_heartbeat(os.environ.get("TFDIST_HEARTBEAT", ""))
        self._send(f"exit {self._status or 0}\n")

    def _start(self) -> None:
        self._pid = os.fork()
        if self._pid:
            with contextlib.suppress(OSError):  # Both sides do it: neither may rely on the other.
                os.setpgid(self._pid, self._pid)
            return
        try:
            os.setpgid(0, 0)
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            # Python ignores these two, and exec would hand that on.
            for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            if self._cores:
                os.sched_setaffinity(0, self._cores)
            os.execvp(self._command[0], self._command)
        except OSError as error:
            print(f"tfdist: cannot run {self._command[0]!r}: {error.strerror}", file=sys.stderr)
            sys.stderr.flush()
        finally:
            os._exit(127)

    def _obey(self) -> bool:
        """Obeys the launcher's orders; returns False to kill everything and end."""
        try:
            orders = self._control.recv(64)
        except OSError:
            orders = b""
        self._is_orphan = not orders
        for order in orders:
            if order == ord("T"):
                self._terminate()
            else:
                return False
        return bool(orders)

    def _terminate(self) -> None:
        self._stopping = True
        with contextlib.suppress(OSError):
            os.killpg(self._pid, signal.SIGTERM)
            # A stopped process does not see SIGTERM until it continues.
            os.killpg(self._pid, signal.SIGCONT)

    def _ask_orphans(self) -> None:
        """Sends SIGTERM to the task's processes outside its group that this process has adopted."""
        for pid in _children():
            if pid not in self._asked:
                self._asked.add(pid)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self._pid:
                    self._status = status

    def _kill_all(self) -> None:
        """Kills the task and its descendants; orphans are adopted one level at a time."""
        while True:
            if self._status is None:
                with contextlib.suppress(OSError):
                    os.killpg(self._pid, signal.SIGKILL)
            left = _children()
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            if not left and self._status is not None:
                return
            time.sleep(0.005)

    def _send(self, text: str) -> None:
        with contextlib.suppress(OSError):  # The launcher may be gone.
            self._control.sendall(text.encode())


def main(argv: list[str]) -> None:
    """Reads the arguments and runs the guard."""
    control = socket.socket(fileno=int(argv[0]))
    control.set_inheritable(False)
    cores = [int(core) for core in argv[1].split(",") if core]
    Guard(control, cores, argv[2:]).run()


if __name__ == "__main__":
    main(sys.argv[1:])
