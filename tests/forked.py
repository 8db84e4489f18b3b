"""Processes that have TensorFlow already: forked from one that has imported it and done no more.

A start of TensorFlow, Keras and tfdist costs eight CPU seconds, a fork of a process that has
imported them some milliseconds. `Popen` here takes what `subprocess.Popen` takes and runs the same
program: the child sets its environment, arguments, folder and streams, and then is what the
command would have become. What it cannot show is starting itself, and variables that are read
while modules are imported (TF_CPP_MIN_LOG_LEVEL among them): tests of those start a process.

The server is a process of its own, so that the process of the tests may use TensorFlow: a runtime
that has started does not survive a fork. One serves all sessions of a run: see `conftest.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

# The folder of the server's socket; set by the first process that asks, and inherited.
FOLDER = "WARM_FOLDER"
ROOT = Path(__file__).parents[1]
SERVE = "--serve"
START_SECONDS = 180.0  # for TensorFlow's import, on a busy machine

# Not imported here: what tasks do not need, and what draws a random number of TensorFlow's own, as
# TensorFlow Datasets does. Its state would be the same in all children, which name functions by it:
# a parameter server is then sent two functions of one name. `test_forked.py` watches that.
NOT_IMPORTED = tuple(
    f"tfdist.{name}"
    for name in ("__main__", "benchmark", "cli", "data", "doctor", "programs", "report")
)

_LENGTH = struct.Struct("!I")
_STATUS = struct.Struct("!i")


class Popen:
    """A running program, with the part of `subprocess.Popen` that tests use.

    Args:
        command: `[sys.executable, script or "-m", module or "-c", code, arguments ...]`.
        env: The whole environment; by default this process'.
        cwd: Its folder; by default this process'.
        stdin: A file, or DEVNULL; by default this process' standard input.
        stdout: A file, DEVNULL or PIPE; by default this process' standard output.
        stderr: The same, or STDOUT.
        text: Whether the pipes carry text.
        errors: What is done with bytes that are not text.
        start_new_session: Whether it leads a session of its own.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
        errors: str | None = None,
        start_new_session: bool = False,
    ) -> None:
        self.args = list(command)
        self.returncode: int | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        assert self.args[0] == sys.executable, f"not a program of Python: {self.args}"
        with contextlib.ExitStack() as stack:

            def reading(pipe: int) -> IO[Any]:
                return os.fdopen(pipe, "r" if text else "rb", errors=errors)

            def opened(stream: int | IO[Any] | None, number: int) -> int:
                if stream is None:
                    return number
                if stream == subprocess.DEVNULL:
                    found = os.open(os.devnull, os.O_RDWR)
                elif stream == subprocess.PIPE:
                    mine, found = os.pipe()
                    setattr(self, ("stdin", "stdout", "stderr")[number], reading(mine))
                else:
                    return stream if isinstance(stream, int) else stream.fileno()
                stack.callback(os.close, found)
                return found

            streams = [opened(stdin, 0), opened(stdout, 1)]
            streams.append(streams[1] if stderr == subprocess.STDOUT else opened(stderr, 2))
            request = {
                "arguments": self.args[1:],
                "environment": dict(os.environ if env is None else env),
                "folder": os.fspath(os.getcwd() if cwd is None else cwd),
                "session": start_new_session,
            }
            data = json.dumps(request).encode()
            self._connection = _connected()
            socket.send_fds(self._connection, [_LENGTH.pack(len(data))], streams)
            self._connection.sendall(data)
        (self.pid,) = _STATUS.unpack(_received(self._connection, _STATUS.size))

    def poll(self) -> int | None:
        """The exit code, or minus the number of the signal that ended it; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end; returns the exit code.

        Raises:
            subprocess.TimeoutExpired: It has not ended in so many seconds.
        """
        if self.returncode is None:
            self._connection.settimeout(None)
            with selectors.DefaultSelector() as selector:
                selector.register(self._connection, selectors.EVENT_READ)
                if not selector.select(timeout):
                    assert timeout is not None
                    raise subprocess.TimeoutExpired(self.args, timeout)
            status = _received(self._connection, _STATUS.size)
            self.returncode = os.waitstatus_to_exitcode(_STATUS.unpack(status)[0])
            self._connection.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Reads the pipes to their ends, and waits.

        Raises:
            subprocess.TimeoutExpired: It has not ended in so many seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        found: list[Any] = []
        for pipe in (self.stdout, self.stderr):
            if pipe is None or pipe.closed:
                found.append(None)
                continue
            parts: list[bytes] = []
            with selectors.DefaultSelector() as selector, pipe:
                selector.register(pipe, selectors.EVENT_READ)
                while True:
                    left = None if until is None else max(0.0, until - time.monotonic())
                    if not selector.select(left):
                        assert timeout is not None
                        raise subprocess.TimeoutExpired(self.args, timeout, b"".join(parts))
                    if not (part := os.read(pipe.fileno(), 65536)):
                        break
                    parts.append(part)
                encoding = getattr(pipe, "encoding", None)
                whole = b"".join(parts)
                found.append(whole.decode(encoding, pipe.errors) if encoding else whole)
        self.wait(None if until is None else max(0.0, until - time.monotonic()))
        return found[0], found[1]

    def send_signal(self, number: int) -> None:
        """Sends it a signal, if it still runs."""
        if self.poll() is None:
            # The server has not reaped it, or has just: numbers are not used again so soon.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    command: Sequence[str], *, timeout: float, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Runs a program to its end, as `subprocess.run` does.

    Raises:
        subprocess.TimeoutExpired: It did not end in so many seconds, and was killed.
        subprocess.CalledProcessError: It failed, and `check` is set.
    """
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = Popen(command, **options)
    try:
        output, errors = process.communicate(timeout)
    finally:
        process.kill()
        process.wait()
    assert process.returncode is not None
    done = subprocess.CompletedProcess(list(command), process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def python() -> tuple[str, ...]:
    """Words that stand for `python` where another program starts a task, as the launcher does.

    They start a small process that has the server run the rest of its command line, hands signals
    on, and ends as that ends. Where it is killed, the server kills the program at once; to stop it
    (SIGSTOP) does not stop the program.
    """
    _connected().close()  # Now, as the server keeps the environment that it is started in.
    return sys.executable, "-S", str(Path(__file__).resolve())


def folder() -> Path:
    """The folder of the server that this process and those that it starts share.

    It goes with the process that made it, and the server with the folder.
    """
    if FOLDER not in os.environ:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="tfdist-warm-")
        atexit.register(_remove, os.environ[FOLDER], os.getpid())
    return Path(os.environ[FOLDER])


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # Not where that was forked.
        shutil.rmtree(path, ignore_errors=True)


def _connected() -> socket.socket:
    """A connection to the server, which is started where none runs."""
    place = folder()
    path = str(place / "socket")
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        with (place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                connection.connect(path)  # Another session has started it.
                return connection
            _start(place)
            connection.connect(path)
    return connection


def _start(place: Path) -> None:
    """Starts the server, and waits until it has imported all."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    # Not by `subprocess`: it lives on, which that warns of.
    server = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "tests.forked", SERVE, str(place)],
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(place / "log"), write, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )
    until = time.monotonic() + START_SECONDS
    while not (place / "socket").exists():
        has_ended = os.waitpid(server, os.WNOHANG)[0]
        said = (place / "log").read_text(errors="replace") if has_ended else ""
        assert not has_ended and time.monotonic() < until, f"no server:\n{said}"
        time.sleep(0.05)


def _received(connection: socket.socket, size: int) -> bytes:
    """So many bytes.

    Raises:
        ConnectionError: The server has gone.
    """
    data = b""
    while len(data) < size:
        if not (part := connection.recv(size - len(data))):
            raise ConnectionError("the server of forked processes has ended; see its log")
        data += part
    return data


def _serve(place: Path) -> dict[str, Any] | None:
    """Forks a child for each request until the folder is gone; kills those still running.

    Returns:
        In a child, its request; in the server, None.
    """
    selector = selectors.DefaultSelector()
    listener = socket.socket(socket.AF_UNIX)
    running: dict[socket.socket, int] = {}  # Connections to children.
    # Renamed when it listens: who finds it can connect.
    listener.bind(str(place / "starting"))
    listener.listen(128)
    (place / "starting").rename(place / "socket")
    selector.register(listener, selectors.EVENT_READ)
    while place.exists():
        for key, _ in selector.select(1.0):
            if key.fileobj is listener:
                connection = listener.accept()[0]
                try:
                    head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
                    request = json.loads(_received(connection, _LENGTH.unpack(head)[0]))
                except (OSError, struct.error):  # Whoever asked was killed meanwhile.
                    connection.close()
                    continue
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    for other in (listener, connection, *running):
                        other.close()
                    return request | {"streams": streams}
                for stream in streams:
                    os.close(stream)
                running[connection] = pid
                with contextlib.suppress(OSError):
                    connection.sendall(_STATUS.pack(pid))
                selector.register(connection, selectors.EVENT_READ)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, connection)
            elif isinstance(key.fileobj, int):  # A child has ended.
                selector.unregister(key.fileobj)
                os.close(key.fileobj)
                connection = key.data
                _, status = os.waitpid(running.pop(connection), 0)
                with contextlib.suppress(KeyError):
                    selector.unregister(connection)
                with contextlib.suppress(OSError):  # Nobody waits.
                    connection.sendall(_STATUS.pack(status))
                connection.close()
            elif key.fileobj in running:  # Nobody will ask for it any more.
                selector.unregister(key.fileobj)
                os.kill(running[key.fileobj], signal.SIGKILL)
    for pid in running.values():
        os.kill(pid, signal.SIGKILL)
    return None


def _become(request: dict[str, Any]) -> None:
    """Runs the program of a request in this process, as the interpreter would have."""
    import numpy as np

    for number in (signal.SIGINT, signal.SIGTERM):
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, default)
    if request["session"]:
        os.setsid()
    for number, stream in enumerate(request["streams"]):
        os.dup2(stream, number)
    for stream in request["streams"]:
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    np.random.seed()  # A process that starts has a state of its own; `random` sees to it.
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    arguments = request["arguments"]
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *(path for path in sys.path if path not in ("", str(ROOT), *paths))]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    if arguments[0] == "-m":
        import runpy

        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
        return
    if arguments[0] == "-c":
        sys.argv, code, name = ["-c", *arguments[2:]], arguments[1], "<string>"
        sys.path.insert(0, "")
    else:
        sys.argv, name = arguments, arguments[0]
        code = Path(name).read_text()
        sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
        main.__file__ = name
    exec(compile(code, name, "exec"), main.__dict__)


def _import_all() -> None:
    """Imports what programs of tests import, and starts nothing."""
    import gc
    import importlib
    import pkgutil

    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    import tfdist

    for module in pkgutil.walk_packages(tfdist.__path__, "tfdist."):
        if not module.name.startswith(NOT_IMPORTED):
            importlib.import_module(module.name)
    # A collection in a child would copy every page of them.
    gc.freeze()


def _stand_for(command: list[str]) -> int:
    """Runs a command by the server, and takes its signals and its end; returns the exit code."""
    process = Popen(command)
    ends = (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD)
    for number in signal.valid_signals() - set(ends):
        with contextlib.suppress(OSError):  # Some are the C library's own.
            signal.signal(number, lambda number, _: process.send_signal(number))
    code = process.wait()
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    if sys.argv[1] != SERVE:
        sys.exit(_stand_for([sys.executable, *sys.argv[1:]]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The session that is interrupted ends this.
    _import_all()
    _request = _serve(Path(sys.argv[2]))
    if _request is not None:
        _become(_request)
