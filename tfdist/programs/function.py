"""Runs a Python function as the tasks of a cluster on this machine.

`launch` starts this module once more in each task: `python -m tfdist.programs.function FOLDER`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tfdist
from tfdist import errors
from tfdist.cluster import Cluster
from tfdist.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_PREEMPTED,
    EXIT_USER_ERROR,
    PeerError,
    Preempted,
    TaskError,
    TfdistError,
)
from tfdist.launcher.call_folder import CallFolder, load_call
from tfdist.launcher.exits import Exit
from tfdist.launcher.job import Job
from tfdist.launcher.local import STALL_SECONDS, LaunchOptions, Supervisor
from tfdist.runtime import excepthook
from tfdist.validation import MOST_SECONDS, number, quote, reject, whole_number

_Result = TypeVar("_Result")

_PROGRAM = "tfdist.programs.function"  # This module, which is `__main__` in a task.


def launch(
    function: Callable[..., _Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    workers: int = 2,
    ps: int = 0,
    max_restarts: int = 0,
    stall_timeout: float = STALL_SECONDS,
    grace: float = 10.0,
    log_dir: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> _Result:
    """Runs a function as each task of a cluster on this machine, as `tfdist launch` runs a program.

    Each worker is its own process, which calls the function and shows what it prints behind
    its name. With `ps`, a chief calls the function, and ps and workers serve. Function, arguments
    and result are pickled (by cloudpickle, so they may be defined in a script or a notebook).

    The processes share nothing with this one: make models, data and strategies in the function, and
    leave GPUs to it.

    Args:
        function: What each task calls.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        workers: The number of workers.
        ps: The number of parameter servers; with some there is a chief as well.
        max_restarts: How often tasks may be started again, when one is lost.
        stall_timeout: Seconds without a step after which a task counts as lost; 0 for never.
        grace: Seconds a task has to end before it is killed.
        log_dir: A directory for a copy of each task's output.
        env: Variables for every task.

    Returns:
        What the function returned in the chief, which is worker 0 where there is no `ps`.

    Raises:
        ConfigError: An argument is wrong or cannot be sent, or this is a task of a cluster already;
            nothing was started. Or a task raised it.
        TaskError: The function raised an exception in a task, or ended that with an exit code.
        PeerError: A task was killed or has stalled; or SIGTERM came before all tasks had saved.
        Preempted: SIGTERM came, and all tasks have saved.
        TfdistError: A task raised another error of tfdist.
        KeyboardInterrupt: Ctrl-C was pressed; the tasks have been ended.

    Example:
        In a script or a notebook::

            def train(epochs):
                strategy = tfdist.build_strategy("auto", tfdist.Cluster.from_environment())
                with strategy.scope():
                    model = tfdist.models.small_cnn((8, 8, 1), classes=10)
                    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
                digits = tfdist.data.load("digits")
                history = tfdist.Trainer(model).fit(digits.train(global_batch=64), epochs=epochs)
                return history.history

            history = tfdist.launch(train, (3,), workers=2)
    """
    excepthook.install()
    options = LaunchOptions(
        max_restarts=whole_number("launch(max_restarts)", max_restarts, least=0),
        grace=number("launch(grace)", grace, least=0.0, most=MOST_SECONDS),
        stall_timeout=number("launch(stall_timeout)", stall_timeout, least=0.0, most=MOST_SECONDS),
        log_dir=None if log_dir is None else _directory(log_dir),
        env=_variables(env or {}),
    )
    counts = {
        "worker": whole_number("launch(workers)", workers),
        "ps": whole_number("launch(ps)", ps, least=0),
    }
    counts["chief"] = min(counts["ps"], 1)
    _check_call(function, args, kwargs)
    cluster = Cluster.from_environment()
    if not cluster.is_local:
        where = f"this is {cluster.task} of a cluster ({cluster.source})"
        reject("launch", f"{where}, which starts no other; call {_name(function)} itself")
    with _private_folder() as folder:
        calls = CallFolder(Path(folder))
        job = Job.from_counts(counts, [sys.executable, "-m", _PROGRAM, folder])
        try:
            calls.send_call(function, args, kwargs or {})
        except OSError as error:
            reject("launch", f"{folder} cannot be written ({error.strerror}); set TMPDIR")
        supervisor = Supervisor(job, options)
        code = supervisor.run()
        if code == EXIT_DONE:
            result: _Result = calls.result()
            return result
        if supervisor.cause is not None:
            raise _error(supervisor.cause, calls)
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if code == EXIT_PREEMPTED:
        raise Preempted("launch: SIGTERM: all tasks have ended, after saving")
    raise PeerError("launch: SIGTERM: all tasks have ended, not all of them after saving")


def _error(cause: Exit, calls: CallFolder) -> TfdistError:
    """Returns the exception for the end of a task."""
    failure = calls.failure(cause.task) if cause.code > 0 and not cause.note else None
    if failure is None:
        kind = PeerError if cause.retryable else TaskError
        return kind(f"{cause.task}: {cause}")
    error: TfdistError
    if failure.kind:
        error = getattr(errors, failure.kind)(f"{cause.task}: {failure.text}")
    else:
        error = TaskError(f"{cause.task}: {failure.text}", failure.trace)
    error.add_note(f"In {cause.task}:\n{failure.trace}")
    return error


def _check_call(function: Any, args: Any, kwargs: Any) -> None:
    if not callable(function):
        reject("launch(function)", f"{quote(function)} is given; allowed: a function")
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        reject("launch(args)", f"{quote(args)} is given; allowed: a tuple or list of arguments")
    if kwargs is not None and not (
        isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs)
    ):
        reject("launch(kwargs)", f"{quote(kwargs)} is given; allowed: a dict of names to values")


def _variables(env: Any) -> dict[str, str]:
    allowed = "allowed: a dict of names to strings"
    if not isinstance(env, Mapping):
        reject("launch(env)", f"{quote(env)} is given; {allowed}")
    for name, value in env.items():
        texts = isinstance(name, str) and isinstance(value, str)
        if not texts or not name or "=" in name or "\0" in name + value:
            reject("launch(env)", f"{quote(name)}: {quote(value)} is given; {allowed}")
    return dict(env)


def _directory(log_dir: Any) -> Path:
    try:
        return Path(log_dir)
    except TypeError:
        reject("launch(log_dir)", f"{quote(log_dir)} is given; allowed: the path of a directory")


def _private_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="tfdist-launch-")
    except OSError as error:
        reject("launch", f"no folder for temporary files ({error.strerror}); set TMPDIR")


def _name(function: Any) -> str:
    return getattr(function, "__name__", None) or quote(function)


def run_task(folder: str) -> None:
    """Calls the function, or serves the chief that does; sends the chief's result or the error.

    Args:
        folder: Where the call is.

    Raises:
        SystemExit: The function has raised; the task ends as a script would.
    """
    excepthook.install()
    calls = CallFolder(Path(folder))
    cluster = Cluster.from_environment()
    task = str(cluster.task)
    calls.forget_failure(task)
    try:
        _work(calls, cluster)
    except Exception as error:
        error.__traceback__ = _of_the_user(error.__traceback__)
        calls.send_failure(task, error)
        # As Python itself ends, but that the traceback begins with the user's code.
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(EXIT_USER_ERROR)


def _work(calls: CallFolder, cluster: Cluster) -> None:
    head = calls.read_head()
    sys.path[:] = head["path"]
    if cluster.has_ps and tfdist.serve(cluster):
        return
    if head["tensorflow"]:
        # Not above: whoever launches a function need not have TensorFlow.
        from tfdist.runtime.startup import start_tensorflow

        start_tensorflow()
    function, args, kwargs = load_call(head["call"])
    result = function(*args, **kwargs)
    if cluster.is_chief:
        calls.send_result(result)


def _of_the_user(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Returns the traceback without what is in this module at its beginning."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__ and trace.tb_next:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    run_task(sys.argv[1])
