"""The exceptions tfdist raises and the exit codes they end a process with.

TFJob's `restartPolicy: ExitCode` retries a container that ends with 128 or
above and gives up on one that ends below, so each class carries the code that
says whether starting again can help.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_USER_ERROR = 1
EXIT_CONFIG = 2
EXIT_PEER_LOST = 138
EXIT_PREEMPTED = 143


class TfdistError(Exception):
    """Base of all tfdist errors; `exit_code` is what the process ends with."""

    exit_code: int = EXIT_USER_ERROR


class ConfigError(TfdistError, ValueError):
    """Bad configuration: nothing was started. Retrying cannot help.

    The message is one line: where, what was given, what is allowed, what to do.
    """

    exit_code = EXIT_CONFIG


class CheckpointError(TfdistError):
    """A checkpoint could not be written. Those before it are untouched."""

    exit_code = EXIT_USER_ERROR


class PeerError(TfdistError):
    """A peer was lost, is missing, or has stalled. Retrying can help."""

    exit_code = EXIT_PEER_LOST


class OutOfStepError(TfdistError):
    """The workers made different calls, so none can go on. Retrying cannot help."""

    exit_code = EXIT_USER_ERROR


class Preempted(TfdistError):
    """Stopped by SIGTERM after saving. The next start goes on from there."""

    exit_code = EXIT_PREEMPTED
