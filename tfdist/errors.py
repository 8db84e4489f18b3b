"""The exceptions that tfdist raises, and the exit codes they end a process with.

TFJob's `restartPolicy: ExitCode` retries a container that ends with 128 or
above and gives up on one that ends below, so each class carries the code that
says whether starting again can help.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_USER_ERROR = 1
EXIT_CONFIG = 2
EXIT_INTERRUPTED = 130
EXIT_KILLED = 137
EXIT_PEER_LOST = 138
# SIGTERM's own, as shells and Kubernetes have it, whether or not anything was saved.
EXIT_PREEMPTED = 143


class TfdistError(Exception):
    """Base class of all tfdist errors.

    Uncaught, it ends the process with one line on standard error.

    Attributes:
        exit_code: The exit code of a process that the error ends.

    Example:
        >>> try:
        ...     tfdist.virtual_devices(0)
        ... except tfdist.TfdistError as error:
        ...     print(error.exit_code, error)
        2 virtual_devices(count): 0 is given; allowed: a whole number of 1 or more
    """

    exit_code: int = EXIT_USER_ERROR


class ConfigError(TfdistError, ValueError):
    """Bad configuration: nothing was started. Retrying cannot help.

    The message is one line: where, what was given, what is allowed, what to do.

    Example:
        >>> tfdist.build_strategy("mirored")
        Traceback (most recent call last):
        tfdist.errors.ConfigError: strategy: 'mirored' is given; allowed: auto, one_device, ...
    """

    exit_code = EXIT_CONFIG


class CheckpointError(TfdistError):
    """A checkpoint could not be written. Those before it are untouched.

    Example:
        A full disk ends training, but the weights can go elsewhere::

            trainer = tfdist.Trainer(model, checkpoint_dir="runs/mine")
            try:
                trainer.fit(dataset, epochs=90)
            except tfdist.CheckpointError:
                model.save("/another/disk/model.keras")
                raise
    """

    exit_code = EXIT_USER_ERROR


class PeerError(TfdistError):
    """A peer was lost, is missing, or has stalled. Retrying can help.

    Example:
        Uncaught, it ends the process with code 138, upon which `tfdist launch
        --max-restarts` and the manifests of `tfdist render` start the job again. To
        do something before that::

            try:
                trainer.fit(dataset, epochs=90)
            except tfdist.PeerError as error:
                notify(f"restarting: {error}")
                raise
    """

    exit_code = EXIT_PEER_LOST


class OutOfStepError(TfdistError):
    """The workers made different calls, so none can go on. Retrying cannot help.

    Example:
        Every worker must make the same calls. This script raises the error, because
        only the chief evaluates::

            trainer.fit(dataset, epochs=10)
            if cluster.is_chief:
                trainer.evaluate(test_dataset)
    """

    exit_code = EXIT_USER_ERROR


class TaskError(TfdistError):
    """The function that `tfdist.launch` ran has failed in a task. Retrying cannot help.

    Attributes:
        traceback: The text of the traceback, in the task; "" where it ended without an exception.

    Example:
        The message has the task and the exception in one line, `traceback` has the rest::

            try:
                tfdist.launch(train, workers=2)
            except tfdist.TaskError as error:
                print(error)  # worker/1: FileNotFoundError: [Errno 2] No such file ...
                print(error.traceback)
    """

    exit_code = EXIT_USER_ERROR

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class Preempted(TfdistError):
    """Training was stopped by SIGTERM after saving. The next start resumes from there.

    Example:
        Uncaught, it ends the process with code 143. To do something before that::

            trainer = tfdist.Trainer(model, checkpoint_dir="runs/mine")
            try:
                trainer.fit(dataset, epochs=90)
            except tfdist.Preempted:
                upload("runs/mine")
                raise
    """

    exit_code = EXIT_PREEMPTED
